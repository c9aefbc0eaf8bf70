"""OpenAI's own client: models, completions with and without a stream, embeddings in both encodings, a refused chat."""

import json
import sys

import openai

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key=sys.argv[2])
answer = client.completions.create(model="gpt2", prompt="the cat", max_tokens=6, temperature=0, logprobs=2, echo=True)
stream = client.completions.create(model="gpt2", prompt="the cat", max_tokens=6, temperature=0, stream=True)
drawn = client.completions.create(model="gpt2", prompt="the cat", max_tokens=6, seed=4, n=2, stop=["\n\n"])
try:
    client.chat.completions.create(model="gpt2", messages=[{"role": "user", "content": "hello"}])
    chat = "answered"
except openai.BadRequestError as error:
    chat = error.message
try:
    openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="wrong-token").models.list()
    locked = False
except openai.AuthenticationError:
    locked = True
packed = client.embeddings.create(model="bert", input=["the cat", "고양이"])  # base64 behind the scenes
plain = client.embeddings.create(model="bert", input=["the cat", "고양이"], encoding_format="float")
print(json.dumps({
    "models": [one.id for one in client.models.list()],
    "text": answer.choices[0].text,
    "log_probs": answer.choices[0].logprobs.token_logprobs,
    "streamed": "".join(event.choices[0].text for event in stream if event.choices),
    "drawn": [one.text for one in drawn.choices],
    "chat": chat,
    "locked": locked,
    "packed": [one.embedding for one in packed.data],
    "plain": [one.embedding for one in plain.data],
}))  # fmt: skip
