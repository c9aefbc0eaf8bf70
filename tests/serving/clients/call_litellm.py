"""litellm: a completion and embeddings through its OpenAI routes."""

import json
import sys

import litellm

how = {"api_base": f"{sys.argv[1]}/v1", "api_key": sys.argv[2]}
text = litellm.text_completion(
    model="text-completion-openai/gpt2", prompt="the cat", max_tokens=6, temperature=0, **how
)
vectors = litellm.embedding(model="openai/bert", input=["the cat", "고양이"], encoding_format="float", **how)
print(json.dumps({"text": text.choices[0].text, "vectors": [one["embedding"] for one in vectors.data]}))
