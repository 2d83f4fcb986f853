# post_trl.py OBJECTIVE MODEL DATA DTYPE THREADS STEPS - TRL and PEFT on the CPU, as bench/post runs maxc: seconds of a step
# after the first, or for grpo tokens generated per second from end to end.
import os, sys, time
objective, model, data, dtype, threads, steps = sys.argv[1:7]
os.environ.update(OMP_NUM_THREADS=threads, TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import TrainerCallback
import trl

torch.set_num_threads(int(threads))
times, lengths = [], []


class Clock(TrainerCallback):
    def on_step_end(self, args, state, control, **kw):
        times.append(time.time())

    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "completions/mean_length" in logs:
            lengths.append(logs["completions/mean_length"])


rows = load_dataset("json", data_files=data, split="train")
common = dict(output_dir="/tmp/post_trl", max_steps=int(steps), use_cpu=True, bf16=dtype == "bfloat16", logging_steps=1,
              report_to="none", save_strategy="no", gradient_checkpointing=False, learning_rate=1e-5, disable_tqdm=True,
              shuffle_dataset=False) if objective == "grpo" else \
    dict(output_dir="/tmp/post_trl", max_steps=int(steps), use_cpu=True, bf16=dtype == "bfloat16", logging_steps=1,
         report_to="none", save_strategy="no", gradient_checkpointing=False, learning_rate=1e-5, disable_tqdm=True,
         per_device_train_batch_size=2, max_length=512)
lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
if objective == "sft":
    t = trl.SFTTrainer(model, args=trl.SFTConfig(**common), train_dataset=rows, peft_config=lora, callbacks=[Clock()])
elif objective == "dpo":
    t = trl.DPOTrainer(model, args=trl.DPOConfig(**common), train_dataset=rows, peft_config=lora, callbacks=[Clock()])
else:
    def reward(completions, **kw):
        return [float(len(c[0]["content"]) % 7) for c in completions]
    t = trl.GRPOTrainer(model, reward, args=trl.GRPOConfig(**common, per_device_train_batch_size=32, num_generations=4,
                        max_completion_length=128), train_dataset=rows, callbacks=[Clock()])
t.train()
each = (times[-1] - times[0]) / (len(times) - 1)
print(32 * sum(lengths[1:]) / len(lengths[1:]) / each if objective == "grpo" else each)
