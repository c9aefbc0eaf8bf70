"""lm-eval: the perplexity of a file, scored through /v1/completions with the server's own tokenizer."""

import json
import os
import sys
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager

base, token, file, context, as_ids = sys.argv[1:6]
os.environ["OPENAI_API_KEY"] = token
folder = Path(file).parent
(folder / "lines.yaml").write_text(f"""
task: lines
dataset_path: json
dataset_kwargs: {{data_files: {{test: {json.dumps(file)}}}}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - {{metric: word_perplexity}}
  - {{metric: byte_perplexity}}
  - {{metric: bits_per_byte}}
""")
how = {"model": "gpt2", "base_url": f"{base}/v1/completions", "auth_token": token, "max_length": int(context)}
found = lm_eval.simple_evaluate(
    model="local-completions", model_args={**how, "tokenized_requests": as_ids == "ids", "num_concurrent": 4},
    tasks=["lines"], task_manager=TaskManager(include_path=str(folder)), bootstrap_iters=0,
)  # fmt: skip
print(json.dumps({key.partition(",")[0]: value for key, value in found["results"]["lines"].items()}, default=str))
