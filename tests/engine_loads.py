"""Small random loads for the scheduler model and the engine, the same from the same seed in both."""

import random


def engines(seed, *, count=6, loads=5):
    """[{"settings": of the engine, "loads": [[{"prompt_ids", "output_tokens", "salt"}]]}]."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        settings = {
            "num_blocks": rng.choice([20, 40, 64, 100]), "block_size": rng.choice([32, 64, 96, 128]),
            "max_num_seqs": rng.choice([2, 4, 8, 16]), "max_num_batched_tokens": rng.choice([128, 256, 512, 1024]),
            "enable_prefix_caching": rng.random() < 0.7}
        longest = min(settings["block_size"] * (settings["num_blocks"] - 1), 4096)
        prefixes = [[rng.randrange(10, 1000) for _ in range(rng.randrange(40, 400))] for _ in range(3)]
        found.append({"settings": settings, "loads": [_load(rng, prefixes, longest) for _ in range(loads)]})
    return found


def _load(rng, prefixes, longest):
    jobs = []
    for _ in range(rng.randrange(3, 14)):
        prefix = rng.choice(prefixes) if rng.random() < 0.6 else []
        prompt = prefix + [rng.randrange(10, 1000) for _ in range(rng.randrange(1, 300))]
        output, salt = rng.randrange(1, 90), ""
        if len(prompt) + output <= longest:
            salt = rng.choice(["", "", "a"])
            jobs.append({"prompt_ids": prompt, "output_tokens": output, "salt": salt})
    return jobs
