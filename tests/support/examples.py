"""How many examples hypothesis tries: all of them where the slow tests run too, a quarter where they are left out."""

from hypothesis import settings

WHOLE = 100


def profile(quick: bool) -> None:
    """Take the profile of the quick tests, or that of all."""
    for name, most in (("thorough", WHOLE), ("quick", WHOLE // 4)):
        settings.register_profile(name, max_examples=most, deadline=None)
    settings.load_profile("quick" if quick else "thorough")


def examples(thorough: int) -> int:
    """Return how many examples a test takes that takes so many when it is thorough."""
    return max(thorough * settings.default.max_examples // WHOLE, 5)
