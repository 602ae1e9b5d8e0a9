"""The recurrent layers of a HuggingFace transformers model, decoded by replayssm.so.

    decoder = attach(model, replayssm.load("replayssm.so"), max_batch=8)
    model.generate(...)     # prompts as ever; every single token after them goes through the plugin
    decoder.detach()

Prefill stays transformers' own, and so does its cache: the keys and values, and the convolution's history unless
conv=True. With the first single token of a cache its recurrent states are imported into the plugin's slots, row b into slot b;
from then on the plugin has them. Whoever reads them in the cache again (a longer input, beam search, a copy, a second cache
that wants the slots) finds them there: LiveStates exports them at that moment.

The models: any whose mixers are in MIXERS. Written for transformers 5.24; inference only (torch.no_grad).
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional

import torch

import replayssm
from replayssm import ReplayError, Status

# ---- what a mixer computes around the recurrence, for one token; x [B, 1, hidden]


@dataclass
class Token:
    packed: torch.Tensor                              # [B, channels], before the convolution
    gates: Dict[str, torch.Tensor]                    # by role: a and b, or dt
    finish: Callable[[torch.Tensor], torch.Tensor]    # out [B, HV, V] -> the mixer's output [B, 1, hidden]


def flat(*parts: torch.Tensor) -> torch.Tensor:
    """[B, 1, ...] each -> [B, channels]."""
    return torch.cat([part.reshape(part.shape[0], -1) for part in parts], dim=-1)


def qwen3_next(mixer: Any, x: torch.Tensor) -> Token:
    q, k, v, z, b, a = mixer.fix_query_key_value_ordering(mixer.in_proj_qkvz(x), mixer.in_proj_ba(x))

    def finish(out: torch.Tensor) -> torch.Tensor:
        return mixer.out_proj(mixer.norm(out, z[:, 0]).reshape(x.shape[0], 1, -1))

    return Token(flat(q, k, v), {"a": a[:, 0], "b": b[:, 0]}, finish)


def qwen3_5(mixer: Any, x: torch.Tensor) -> Token:
    def finish(out: torch.Tensor) -> torch.Tensor:
        return mixer.out_proj(mixer.norm(out, mixer.in_proj_z(x).view(out.shape)).reshape(x.shape[0], 1, -1))

    return Token(flat(mixer.in_proj_qkv(x)), {"a": mixer.in_proj_a(x)[:, 0], "b": mixer.in_proj_b(x)[:, 0]}, finish)


def olmo_hybrid(mixer: Any, x: torch.Tensor) -> Token:
    def finish(out: torch.Tensor) -> torch.Tensor:
        return mixer.o_proj(mixer.o_norm(out, mixer.g_proj(x).view(out.shape)).reshape(x.shape[0], 1, -1))

    return Token(flat(mixer.q_proj(x), mixer.k_proj(x), mixer.v_proj(x)),
                 {"a": mixer.a_proj(x)[:, 0], "b": mixer.b_proj(x)[:, 0]}, finish)


def kimi_delta(mixer: Any, x: torch.Tensor) -> Token:
    def finish(out: torch.Tensor) -> torch.Tensor:
        gate = mixer.g_b_proj(mixer.g_a_proj(x)).view(out.shape)
        return mixer.o_proj(mixer.o_norm(out, gate).reshape(x.shape[0], 1, -1))

    a = mixer.forget_gate.f_b_proj(mixer.forget_gate.f_a_proj(x))  # the plugin applies A_log and dt_bias
    return Token(flat(mixer.q_proj(x), mixer.k_proj(x), mixer.v_proj(x)), {"a": a[:, 0], "b": mixer.b_proj(x)[:, 0]}, finish)


def mamba2(mixer: Any, x: torch.Tensor) -> Token:
    return mamba2_of(mixer, mixer.in_proj(x))


def mamba2_of(mixer: Any, projected: torch.Tensor, gated_norm: bool = True) -> Token:
    z, packed, dt = projected[:, 0].split([mixer.intermediate_size, mixer.conv_dim, mixer.num_heads], dim=-1)

    def finish(out: torch.Tensor) -> torch.Tensor:
        y = out.reshape(out.shape[0], -1)
        y = mixer.norm(y, z) if gated_norm else y * torch.nn.functional.silu(z)
        return mixer.out_proj(y.to(out.dtype)).unsqueeze(1)

    return Token(packed, {"dt": dt}, finish)


def falcon_h1(mixer: Any, x: torch.Tensor) -> Token:
    return mamba2_of(mixer, mixer.in_proj(x * mixer.ssm_in_multiplier) * mixer.mup_vector, mixer.mamba_rms_norm)


MIXERS: Dict[str, Callable[[Any, torch.Tensor], Token]] = {
    "Qwen3NextGatedDeltaNet": qwen3_next,
    "Qwen3_5GatedDeltaNet": qwen3_5,
    "Qwen3_5MoeGatedDeltaNet": qwen3_5,
    "OlmoHybridGatedDeltaNet": olmo_hybrid,
    "KimiLinearDeltaAttention": kimi_delta,
    "Mamba2Mixer": mamba2,
    "NemotronHMamba2Mixer": mamba2,
    "BambaMixer": mamba2,
    "GraniteMoeHybridMambaLayer": mamba2,
    "FalconH1Mixer": falcon_h1,
}


def weights_of(mixer: Any) -> Dict[str, torch.Tensor]:
    holder = getattr(mixer, "forget_gate", mixer)
    weights = {"A_log": holder.A_log, "dt_bias": holder.dt_bias, "D": getattr(mixer, "D", None)}
    return {role: w.detach() for role, w in weights.items() if w is not None}


# ---- the states in the cache


class LiveStates(dict):  # type: ignore[type-arg]
    """A cache layer's states (by index, 0 is the one) while the plugin may have newer ones: reading them exports those."""

    def __init__(self, states: Dict[int, Any], export: Callable[[], None]) -> None:
        super().__init__(states)
        self._export = export

    def __getitem__(self, index: int) -> Any:
        self._export()
        return super().__getitem__(index)

    def values(self) -> Any:
        self._export()
        return super().values()

    def items(self) -> Any:
        self._export()
        return super().items()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy is a plain dict of the newest states."""
        return dict, (dict(self.items()),)


# ---- the model


class Decoder:
    """A model whose recurrent layers decode in `plugin`, from attach()."""

    def __init__(self, model: Any, plugin: replayssm.Plugin, conv: bool) -> None:
        self.plugin, self.conv = plugin, conv
        found = {m.layer_idx: m for m in model.modules() if type(m).__name__ in MIXERS}
        description = plugin.describe()
        if tuple(sorted(found)) != description.linear_layers:
            raise ReplayError(Status.MODEL, f"the model's mixers are layers {sorted(found)}; its config says "
                                            f"{list(description.linear_layers)}")
        self.mixers: List[Any] = [found[index] for index in description.linear_layers]
        self.weights = [weights_of(mixer) for mixer in self.mixers]
        self.out_shape = (description.HV, description.V)
        # Mamba-2's states are [.., P, N] in transformers too; the delta rules' are [.., K, V].
        self.order = replayssm.StateOrder.VK if description.family_name == "mamba2" else replayssm.StateOrder.KV
        self.slots = torch.arange(max(1, plugin.pool_layout().num_slots), device=model.device, dtype=torch.int32)
        self.rows: Any = None
        self.owner: Any = None  # a weak reference to the cache whose states the plugin has
        self.passes = self.imports = self.exports = 0
        for layer, mixer in enumerate(self.mixers):
            mixer.forward = self._forward_of(mixer, layer)

    def detach(self) -> None:
        """The model as it was; the plugin is closed. A second call does nothing."""
        if self.plugin.closed:
            return
        self.export()
        for mixer in self.mixers:
            del mixer.forward  # of the instance: the class's shows again
        self.plugin.close()

    def _forward_of(self, mixer: Any, layer: int) -> Callable[..., torch.Tensor]:
        theirs, projections = mixer.forward, MIXERS[type(mixer).__name__]

        def forward(hidden_states: torch.Tensor, cache: Any = None, attention_mask: Any = None, **kwargs: Any) -> torch.Tensor:
            if not is_decode(hidden_states, cache, mixer.layer_idx):
                return theirs(hidden_states, cache=cache, attention_mask=attention_mask, **kwargs)
            if layer == 0:
                self._begin(cache, hidden_states.shape[0])
            token = projections(mixer, hidden_states)
            return token.finish(self._recurrence(layer, token, cache))

        return forward

    def _begin(self, cache: Any, batch: int) -> None:
        """Once per forward pass, in its first recurrent layer."""
        if batch > len(self.slots):
            raise ReplayError(Status.SHAPE, f"a batch of {batch} rows; the decoder has {len(self.slots)} slots (max_batch)",
                              expected=len(self.slots), got=batch)
        if self.owner is None or self.owner() is not cache:
            self._import(cache, batch)
        self.plugin.step_begin(self.slots[:batch], self.rows)
        self.passes += 1

    def _recurrence(self, layer: int, token: Token, cache: Any) -> torch.Tensor:
        mixer, batch = self.mixers[layer], token.packed.shape[0]
        packed_role = "mixed_xbc" if "dt" in token.gates else "mixed_qkv"
        if self.conv:
            packed = torch.empty_like(token.packed, memory_format=torch.contiguous_format)
            bias = mixer.conv1d.bias
            self.plugin.conv.decode(layer, conv_in=token.packed, conv_weight=mixer.conv1d.weight.detach(), conv_out=packed,
                                    conv_bias=None if bias is None else bias.detach(), rows=self.rows)
        else:
            update = sys.modules[type(mixer).__module__].causal_conv1d_update  # changes the cache's history in place
            packed = update(token.packed.unsqueeze(-1), cache.get_conv_state(mixer.layer_idx),
                            mixer.conv1d.weight.squeeze(1), mixer.conv1d.bias, activation=mixer.activation)[:, :, 0]
        out = packed.new_empty((batch, *self.out_shape))
        self.plugin.decode(layer, **{packed_role: packed}, **token.gates, **self.weights[layer], rows=self.rows, out=out)
        return out

    # ---- states between the cache and the slots

    def _cache_layers(self, cache: Any) -> List[Any]:
        return [cache.layers[mixer.layer_idx] for mixer in self.mixers]

    def _import(self, cache: Any, batch: int) -> None:
        """The cache's states into slots 0 .. batch - 1; those of the cache before go back to it."""
        self.export()
        layers = self._cache_layers(cache)
        self.rows = torch.empty((batch, replayssm.ROW_WIDTH), dtype=torch.int32, device=self.slots.device)
        # transformers keeps w columns of history, of which a next token sees the last w - 1.
        history = [layer.conv_states[0][..., 1:] for layer in layers] if self.conv else None
        self.plugin.slots.import_state(self.slots[:batch], [layer.recurrent_states[0] for layer in layers],
                                       order=self.order, conv=compact(history))
        reference = weakref.ref(cache)

        def export() -> None:
            if self.owner is reference:
                self.export()

        for layer in layers:
            layer.recurrent_states = LiveStates(layer.recurrent_states, export)
            if self.conv:
                layer.conv_states = LiveStates(layer.conv_states, export)
        self.owner = reference
        self.imports += 1

    def export(self) -> None:
        """The newest states into their cache, which has them from then on."""
        reference, self.owner = self.owner, None
        cache = reference() if reference is not None else None
        if cache is None:
            return
        layers = self._cache_layers(cache)
        for layer in layers:
            layer.recurrent_states = dict(layer.recurrent_states.items())
            layer.conv_states = dict(layer.conv_states.items())
        states = [layer.recurrent_states[0] for layer in layers]
        history = compact([layer.conv_states[0][..., 1:] for layer in layers]) if self.conv else None
        decay = [w["A_log"] for w in self.weights] if self.order == replayssm.StateOrder.VK else None
        self.plugin.slots.export_state(self.slots[:len(self.rows)], states, order=self.order, conv=history, A_log=decay)
        for layer, columns in zip(layers, history or ()):
            layer.conv_states[0][..., 1:] = columns
        self.exports += 1


def is_decode(hidden_states: torch.Tensor, cache: Any, layer_idx: int) -> bool:
    """One token, and a state to go on from. A cache that records its past (assisted decoding) stays transformers' own."""
    return (hidden_states.shape[1] == 1 and cache is not None and cache.has_previous_state(layer_idx)
            and cache.layers[layer_idx].is_recurrent_states_initialized[0] and not cache.is_recording_past(layer_idx))


def compact(tensors: Optional[List[torch.Tensor]]) -> Optional[List[torch.Tensor]]:
    return None if tensors is None else [t.contiguous() for t in tensors]


def attach(model: Any, library: replayssm.Library, *, max_batch: int = 1, config: Any = None, conv: bool = False,
           **options: Any) -> Decoder:
    """Makes the model's recurrent layers decode in the plugin, on the model's device.

    config   the model's config.json (path, text or dict); None: model.config, as transformers would save it
    conv     the plugin runs the short convolution too, and keeps its history
    options  of Library.init; without one: the model's dtype as io_dtype, and states in float32
    """
    given = {"io_dtype": model.dtype, "state_dtype": "float32", **options}
    plugin = library.init(config if config is not None else model.config.to_json_string(use_diff=False), device=model.device,
                          num_slots=max_batch, max_batch=max_batch, conv_state=conv, **given)
    try:
        plugin.prepare()
        plugin.pool_create()
        return Decoder(model, plugin, conv)
    except BaseException:
        plugin.close()
        raise
