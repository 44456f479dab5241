"""Layers of a transformer: embedding, blocks, head, and multi-token prediction.

Multi-token prediction joins the last block's output and the next token's vector as input of one more block, as in DeepSeek-V3
(arXiv 2412.19437, section 2.2) and Megatron (core/transformer/multi_token_prediction.py): a norm of each, a linear from both
concatenated to one, a block of the model's last kind, a norm, and the shared head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clustersim.model.elementwise import add, copy
from clustersim.model.embedding import TABLE, embedding_part, table
from clustersim.model.encoder import cross_attention_part, decoder_entry_part, encoder_norm, encoder_of
from clustersim.model.head import further_head_part, head_part
from clustersim.model.linear import column
from clustersim.model.lora import frozen, without_entry_gradients
from clustersim.model.mixers import mixer_part
from clustersim.model.mlp import mlp_part
from clustersim.model.moe import moe_part
from clustersim.model.norm import norm
from clustersim.model.operator import Layer, Operator
from clustersim.model.parameters import kinds
from clustersim.model.sharding import ShardedModel

LOOKUP = f"mtp_{TABLE}"
"""Name of the operator that looks up the next tokens."""


def prediction_part(shard: ShardedModel, separate_table: bool) -> tuple[Operator, ...]:
    """Return the operators that join the inputs of the block of multi-token prediction.

    separate_table: whether this stage stores a table for the tokens' vectors.
    """
    lookup = table(shard)._replace(name=LOOKUP)
    return (
        lookup if separate_table else lookup._replace(parameters=0),
        norm(shard, "mtp_embedding_norm", fork=False),
        norm(shard, "mtp_hidden_norm", fork=False),
        join(shard),
        projection(shard),
    )


def join(shard: ShardedModel) -> Operator:
    """Return the copy that concatenates a block's output and a token's vector; backward, the gradient of the main path is added
    to its half."""
    shape, traffic = (shard.local, 2 * shard.model.hidden), 2 * shard.size
    backward = (copy(shard, "split", *shape, traffic), add(shard, shard.local, shard.model.hidden))
    return Operator("mtp_concatenate", (copy(shard, "concatenate", *shape, traffic),), backward)


def projection(shard: ShardedModel) -> Operator:
    """Return the column-parallel linear from the concatenation to one vector, whose outputs are gathered over the tp ranks."""
    hidden = shard.model.hidden
    linear = column(shard, "mtp_projection", 2 * hidden, hidden // shard.tp, bias=False)
    return linear._replace(forward=(*linear.forward, *shard.exchange("all_gather", shard.tokens, hidden)))


def blocks(shard: ShardedModel) -> tuple[Layer, ...]:
    """Return the blocks of the model in order, for one tp rank and one microbatch; equal blocks are one object."""
    encoder = encoder_of(shard) if shard.model.encoder_layers else None
    layers = list(zip(shards(shard), kinds(shard.model), strict=True))
    distinct = {(id(shapes), id(kind)): (shapes, kind) for shapes, kind in layers}
    layers_by_key = {key: block(shapes.with_model(kind), encoder) for key, (shapes, kind) in distinct.items()}
    decoder = tuple([layers_by_key[id(shapes), id(kind)] for shapes, kind in layers])
    if (
        shard.lora and shard.training.recompute != "full"
    ):  # recomputed blocks have an input gradient (peft/recompute.py)
        decoder = (replace(decoder[0], operators=without_entry_gradients(decoder[0].operators)), *decoder[1:])
    if encoder is None:
        return decoder
    *others, last = blocks(encoder)
    return (*others, replace(last, operators=(*last.operators, encoder_norm(encoder))), *decoder)


def shards(shard: ShardedModel) -> list[ShardedModel]:
    """Return the shapes of each layer, in order; the first and last layers may stay in the activations' type."""
    first, last = shard.training.bf16_first_layers, shard.model.layers - shard.training.bf16_last_layers
    return [shard if first <= index < last else shard.in_activation_type for index in range(shard.model.layers)]


def decoder_entry(shard: ShardedModel, table: bool) -> Layer:
    """Return the layer from the decoder's token ids to vectors. table: whether the stage must store a table for it."""
    return Layer("embedding", decoder_entry_part(shard, table), 8.0 * shard.tokens)


def embedding(shard: ShardedModel) -> Layer:
    """Return the layer from token ids (8 bytes each) to vectors."""
    operators = frozen(shard, embedding_part(shard), stored=False)
    return Layer("embedding", without_entry_gradients(operators) if shard.lora else operators, 8.0 * shard.tokens)


def head(shard: ShardedModel) -> Layer:
    """Return the layer from vectors to the loss."""
    return Layer("head", frozen(shard, head_part(shard), stored=False), hidden_bytes(shard))


def prediction(shard: ShardedModel, table: bool) -> Layer:
    """Return the block of multi-token prediction: a block of the last kind, with the operators that join its inputs. table:
    whether the stage must store a table for it, having no embedding whose weights it can share."""
    last = block(shards(shard)[-1].with_model(kinds(shard.model)[-1]))
    operators = (*prediction_part(shard, table), *last.operators, norm(shard, "mtp_final_norm", fork=False))
    return replace(last, name="mtp", operators=frozen(shard, operators))


def further_head(shard: ShardedModel) -> Layer:
    """Return the logits and the loss of a further token, which share the head's weights."""
    return Layer("mtp_head", frozen(shard, further_head_part(shard), stored=False), hidden_bytes(shard))


def block(shard: ShardedModel, encoder: ShardedModel | None = None) -> Layer:
    """Return a block: mixer, cross-attention if there is an encoder, and an MLP or experts."""
    model = shard.model
    cross = (("cross_attention", cross_attention_part(shard, encoder)),) if encoder else ()
    mixers = () if model.mixer == "none" else (("attention", mixer_part(shard)),)
    forward = (("mlp", moe_part(shard) if model.experts else mlp_part(shard)),) if model.feed_forward else ()
    halves = (*mixers, *cross, *forward)
    operators = tuple(
        op for half, part in halves for op in _with_norms(shard, half, _with_residual_gradient(shard, part))
    )
    return Layer("block", frozen(shard, operators), hidden_bytes(shard))


def _with_residual_gradient(shard: ShardedModel, part: Sequence[Operator]) -> tuple[Operator, ...]:
    """Return half of a block with the residual's gradient allocated during its backward pass, up to the final sum."""
    residual = hidden_bytes(shard)
    return (*(op._replace(backward_alive=op.backward_alive + residual) for op in part[:-1]), part[-1])


def _with_norms(shard: ShardedModel, name: str, part: Sequence[Operator]) -> tuple[Operator, ...]:
    """Return half of a block (`attention`, `cross_attention`, `mlp`) with its norms: before (pre), after (post) or both.

    At its start the gradients of branch and residual are added. Of two norms, the second comes before the residual sum.
    """
    first_norm = norm(shard, f"{name}_norm")
    if shard.model.norm_position == "both":
        return (first_norm, *part[:-1], norm(shard, f"{name}_post_norm", fork=False), part[-1])
    return (first_norm, *part) if shard.model.norm_position == "pre" else (*part, first_norm)


def hidden_bytes(shard: ShardedModel) -> float:
    """Return the bytes of the activations between two layers on one rank: b·s·h values, 1/tp of them under sequence
    parallelism."""
    return shard.size * shard.local * shard.model.hidden
