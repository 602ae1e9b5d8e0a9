"""Models of HuggingFace transformers with their recurrent layers in the plugin against the same models as they are
(examples/python/replayssm_transformers.py). Skipped where PyTorch or transformers cannot be imported; versions and commands:
docs/transformers.md."""

import copy
import json
import os
import unittest

import support as s
from replayssm import Status

try:
    import torch
    import transformers
except ImportError:
    torch = transformers = None
else:
    import generate
    import replayssm_transformers
    import small_models
    transformers.logging.set_verbosity_error()

KDA, GDN, MAMBA2 = "kimi-linear-48b-a3b", "qwen3-next-80b-a3b", "nemotron-3-nano-30b-a3b"
FAMILIES = (KDA, GDN, MAMBA2)
OTHERS = ("qwen3.5-35b-a3b", "olmo-hybrid-7b", "mamba-codestral-7b", "nemotron-h-56b", "bamba-9b-v2", "granite-4.0-h-small",
          "falcon-h1-1.5b-instruct")
EXACT = dict(ring_length=16, ring_dtype="float32", num_threads=1)
DEVICE = os.environ.get("RSSM_TRANSFORMERS_DEVICE", "cpu")


def small(name, dtype="float32", **sizes):
    """(config, model)."""
    config = small_models.shrink(json.loads((s.ROOT / "configs" / f"{name}.json").read_text()), **sizes)
    return config, small_models.build(config, 1, getattr(torch, dtype), DEVICE)


def prompts(batch, length=24, seed=0):
    return small_models.prompts(batch, length, seed).to(DEVICE)


@unittest.skipUnless(transformers, "PyTorch or transformers cannot be imported")
class Transformers(s.Case):

    def setUp(self):
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # small models; more threads are slower
        self.addCleanup(torch.set_num_threads, threads)

    def attach(self, model, config=None, **options):
        decoder = replayssm_transformers.attach(model, s.library(), config=config, **{**EXACT, "max_batch": 8, **options})
        self.addCleanup(decoder.detach)
        return decoder

    def same(self, got, expected):
        """Token for token, and tokens worth comparing: no loop over a few. The logits agree as float32 does."""
        self.assertTrue(torch.equal(got.tokens, expected.tokens), f"{got.tokens} is not {expected.tokens}")
        self.assertLess(generate.distance(got.logits, expected.logits), 2e-5)
        self.assertGreater(len(expected.tokens.unique()), expected.tokens.shape[1] // 4)

    # ---- the same tokens

    def test_256_tokens(self):
        for name in FAMILIES:
            config, model = small(name)
            for batch, convs in ((1, (False,)), (8, (False, True))):
                plain = generate.greedy(model, prompts(batch), 256)
                for conv in convs:
                    with self.subTest(name, batch=batch, conv=conv):
                        decoder = self.attach(model, config, conv=conv)
                        self.same(generate.greedy(model, prompts(batch), 256), plain)
                        self.assertEqual((decoder.passes, decoder.imports, decoder.exports), (255, 1, 0))
                        decoder.detach()

    def test_other_models(self):
        for name in OTHERS:
            config, model = small(name)
            plain = generate.greedy(model, prompts(3), 40)
            for conv in (False, True):
                with self.subTest(name, conv=conv):
                    decoder = self.attach(model, config, conv=conv)
                    self.same(generate.greedy(model, prompts(3), 40), plain)
                    decoder.detach()

    def test_states_matter(self):
        """Without the prefill's states the logits are far off: what the tests above compare depends on them."""
        for name in FAMILIES:
            with self.subTest(name):
                config, model = small(name)
                tokens = prompts(2, 20, seed=5)
                plain = generate.along(model, prompts(2), tokens)
                decoder = self.attach(model, config)
                take = decoder._import

                def take_and_forget(cache, batch):
                    take(cache, batch)
                    decoder.plugin.reset()

                decoder._import = take_and_forget
                self.assertGreater(generate.distance(generate.along(model, prompts(2), tokens), plain), 0.01)

    def test_bfloat16(self):
        """Logits along given tokens, in bfloat16 with bfloat16 rings. Against the same weights in float32 the plugin is as
        near as transformers' own bfloat16 is. All experts are chosen: a router's near tie would turn rounding into noise."""
        for name, bound in ((KDA, 0.06), (GDN, 0.08), (MAMBA2, 0.03)):
            config, model = small(name, "bfloat16", chosen=small_models.EXPERTS)
            tokens = prompts(2, 64, seed=5)
            exact = generate.along(copy.deepcopy(model).float(), prompts(2), tokens)
            plain = generate.along(model, prompts(2), tokens)
            for conv in (False, True):
                with self.subTest(name, conv=conv):
                    decoder = self.attach(model, config, conv=conv, ring_dtype="bfloat16")
                    got = generate.along(model, prompts(2), tokens)
                    decoder.detach()
                    theirs, ours = generate.distance(plain, exact), generate.distance(got, exact)
                    print(f"{name} conv={conv}: relative L2 to float32: transformers {theirs:.4f}, plugin {ours:.4f}; "
                          f"to each other {generate.distance(got, plain):.4f}")
                    self.assertLess(ours, 1.1 * theirs)
                    self.assertLess(generate.distance(got, plain), bound)

    # ---- batches as servers have them

    def test_left_padding(self):
        """Prompts of 24, 9 and 1 tokens in one batch: as unpatched, and each row as on its own."""
        for name in FAMILIES:
            with self.subTest(name):
                config, model = small(name)
                ids, mask = prompts(3), torch.ones((3, 24), dtype=torch.long, device=DEVICE)
                for row, length in enumerate((24, 9, 1)):
                    ids[row, :24 - length], mask[row, :24 - length] = 0, 0
                plain = generate.greedy(model, ids, 40, mask)
                alone = [generate.greedy(model, ids[row:row + 1, -length:], 40) for row, length in enumerate((24, 9, 1))]
                self.attach(model, config)
                got = generate.greedy(model, ids, 40, mask)
                self.same(got, plain)
                for row, single in enumerate(alone):
                    self.assertTrue(torch.equal(got.tokens[row], single.tokens[0]))

    def test_sampling(self):
        config, model = small(GDN)

        def sample():
            torch.manual_seed(7)
            return model.generate(prompts(4), attention_mask=torch.ones_like(prompts(4)), max_new_tokens=40, do_sample=True,
                                  temperature=0.8, top_k=50)

        plain = sample()
        self.attach(model, config)
        self.assertTrue(torch.equal(sample(), plain))

    def test_batch_and_prompt_change(self):
        """The slots of one prompt are the next one's; nothing of it is left."""
        for name in FAMILIES:
            with self.subTest(name):
                config, model = small(name)
                work = [prompts(4, 24, 1), prompts(1, 7, 2), prompts(3, 33, 3), prompts(4, 24, 1)]
                plain = [generate.greedy(model, ids, 24) for ids in work]
                self.attach(model, config, conv=True)
                for ids, expected in zip(work, plain):
                    self.same(generate.greedy(model, ids, 24), expected)

    def test_beams(self):
        """Beam search reorders the cache at every token: states go back and forth."""
        config, model = small(MAMBA2)

        def beams():
            return model.generate(prompts(2), attention_mask=torch.ones_like(prompts(2)), max_new_tokens=20, num_beams=3,
                                  do_sample=False)

        plain = beams()
        for conv in (False, True):
            decoder = self.attach(model, config, conv=conv)
            self.assertTrue(torch.equal(beams(), plain))
            self.assertGreater(decoder.exports, 10)
            decoder.detach()

    def test_caches(self):
        """Two caches in turn, a second prompt on top of decoded tokens, and a copied cache: the states are where one reads."""
        for name in FAMILIES:
            for conv in (False, True):
                with self.subTest(name, conv=conv):
                    config, model = small(name)
                    plain = self.conversation(model)
                    decoder = self.attach(model, config, conv=conv)
                    got = self.conversation(model)
                    self.assertGreater(decoder.exports, 3)
                    decoder.detach()
                    for step, (mine, theirs) in enumerate(zip(got, plain)):
                        self.assertLess(generate.distance(mine, theirs), 1e-4, f"step {step}")

    @staticmethod
    def conversation(model):
        """The logits of each step."""
        with torch.no_grad():
            first, second = (model(prompts(batch, 20, seed), use_cache=True) for batch, seed in ((2, 1), (3, 2)))
            logits, a, b = [], first.cache, second.cache

            def feed(cache, batch, length, seed):
                logits.append(model(prompts(batch, length, seed), cache=cache, use_cache=True).logits)

            for seed in range(3):
                feed(a, 2, 1, seed)
            for seed in range(3, 6):
                feed(b, 3, 1, seed)
                feed(a, 2, 1, seed)
            feed(a, 2, 5, 6)
            feed(a, 2, 1, 7)
            c = copy.deepcopy(a)
            feed(a, 2, 1, 8)
            feed(c, 2, 1, 9)
            feed(a, 2, 1, 10)
        return logits

    # ---- the config

    def test_saved_config(self):
        """The config as transformers writes it means the same as the published spelling."""
        for name in FAMILIES + OTHERS:
            with self.subTest(name):
                config, model = small(name)
                hashes = set()
                for given in (config, None):
                    decoder = self.attach(model, given)
                    hashes.add(decoder.plugin.describe().layout_hash)
                    decoder.detach()
                self.assertEqual(len(hashes), 1)

    # ---- refusals

    def test_refusals(self):
        config, model = small(GDN)
        plain = generate.greedy(model, prompts(2), 12)

        def refused(status, says, role=None, **options):
            decoder = self.attach(model, options.pop("config", config), **options)
            error = self.refused(status, model.generate, prompts(2), max_new_tokens=4, says=says, role=role)
            decoder.detach()
            return error

        refused(Status.DTYPE, "mixed_qkv", "mixed_qkv", io_dtype="float16")
        refused(Status.SHAPE, "max_batch", max_batch=1)
        wider = refused(Status.SHAPE, "`state`", "state", config={**config, "linear_value_head_dim": 24})
        self.assertEqual({wider.expected, wider.got}, {16, 24})
        self.refused(Status.MODEL, self.attach, model, {**config, "full_attention_interval": 2}, says="layers")
        self.refused(Status.MODEL, self.attach, model, {"model_type": "rwkv"}, says="RWKV")

        decoder = self.attach(model, config)
        with torch.no_grad():
            cache = model(prompts(2), use_cache=True).cache
        self.refused(Status.ARGUMENT, model, prompts(2, 1), cache=cache, use_cache=True, says="grad")
        self.same(generate.greedy(model, prompts(2), 12), plain)
        decoder.detach()
        self.same(generate.greedy(model, prompts(2), 12), plain)


if __name__ == "__main__":
    unittest.main()
