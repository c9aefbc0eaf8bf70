"""LlamaIndex's class for text-embeddings-inference."""

import json
import sys

from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

model = TextEmbeddingsInference(model_name="bert", base_url=sys.argv[1], auth_token=sys.argv[2])
print(json.dumps({"vectors": model.get_text_embedding_batch(["the cat", "고양이"])}))
