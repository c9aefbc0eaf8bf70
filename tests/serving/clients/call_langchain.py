"""LangChain's OpenAI classes: embeddings with the setting that our message names, and a completion."""

import json
import sys

from langchain_openai import OpenAI, OpenAIEmbeddings

base, token = f"{sys.argv[1]}/v1", sys.argv[2]
embeddings = OpenAIEmbeddings(base_url=base, api_key=token, model="bert", check_embedding_ctx_length=False)
model = OpenAI(base_url=base, api_key=token, model="gpt2", max_tokens=6, temperature=0)
print(json.dumps({
    "vectors": embeddings.embed_documents(["the cat", "고양이"]),
    "text": model.invoke("the cat"),
    "streamed": "".join(model.stream("the cat")),
}))  # fmt: skip
