"""Conversion of other programs' files into specs of ours."""
