"""Time and memory of tracing large models at full size: Llama-3-8B under 20 s and 1 GB, 70B under 60 s.

python bench/cost/trace_speed.py [8b] [70b]
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

LENGTH = 4096
LIMITS = {"8b": (20.0, 2**30), "70b": (60.0, None)}
SIZES = {
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "70b": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
}


def trace(size):
    """Trace one training step and print its time, this process's largest memory and the result."""
    import torch
    import transformers

    import fastbudget as fb

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    before = resident_bytes()

    def factory():
        config = transformers.LlamaConfig(
            vocab_size=128256,
            num_key_value_heads=8,
            max_position_embeddings=8192,
            use_cache=False,
            **SIZES[size],
        )
        return transformers.LlamaForCausalLM(config)

    def inputs():
        tokens = torch.randint(0, 128256, (1, LENGTH))
        return {"input_ids": tokens, "labels": tokens}

    began, began_cpu = time.perf_counter(), time.process_time()
    estimate = fb.estimate(factory, inputs, hardware="cuda", precision="bf16-mixed")
    seconds = time.perf_counter() - began
    cpu_seconds = time.process_time() - began_cpu
    limit_s, limit_bytes = LIMITS[size]
    after = resident_bytes()
    print(
        f"llama-3-{size}: {seconds:.1f} s (limit {limit_s:.0f}; {cpu_seconds:.1f} s of CPU), "
        f"{after / 2**30:.2f} GiB resident at most, "
        f"{before / 2**30:.2f} of them imports; {estimate.num_params / 1e9:.3f} billion parameters, "
        f"{estimate.step_flops / 1e12:.1f} TFLOP a step, "
        f"{estimate.memory.allocated_bytes / 2**30:.1f} GiB allocated"
    )
    return seconds > limit_s or (limit_bytes is not None and after > limit_bytes)


def resident_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    if sys.argv[1:2] == ["--child"]:
        return trace(sys.argv[2])
    sizes = sys.argv[1:] or ["8b"]
    return max(subprocess.run([sys.executable, __file__, "--child", size], check=False).returncode for size in sizes)


if __name__ == "__main__":
    sys.exit(main())
