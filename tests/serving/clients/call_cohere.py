"""Cohere's client: reranking."""

import json
import sys

import cohere

client = cohere.ClientV2(api_key=sys.argv[2], base_url=sys.argv[1])
documents = ["the dog ran", "a bird sang in the tree", "the cat sat on the mat"]
first = client.rerank(model="ranker", query="the cat", documents=documents, top_n=2)
print(json.dumps({"order": [one.index for one in first.results], "scores": [o.relevance_score for o in first.results]}))
