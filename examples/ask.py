"""Ask a model of `tmmu serve` with OpenAI's own client: python examples/ask.py [HOST:PORT]"""

import sys

import openai

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
url = address if "://" in address else f"http://{address}"
client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
model = client.models.list().data[0].id
stream = client.completions.create(model=model, prompt=[1, 2, 3], max_tokens=8, temperature=1, seed=0, stream=True)
print(f"{model}:", end="")
for chunk in stream:
    if text := chunk.choices[0].text.strip():
        print("", text, end="", flush=True)
print()
