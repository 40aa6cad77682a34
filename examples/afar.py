"""Use a model of `tmmu serve` as if it were here: python examples/afar.py [HOST:PORT]"""

import sys

import tmmu

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
with tmmu.connect(address) as remote:
    model = remote.load(remote.models()[0].name)
    bytes_here = sum(weight.nbytes for weight in model.parameters() if not weight.is_meta)
    print(
        f"{model.name}: {sum(weight.numel() for weight in model.parameters())} weights, {bytes_here} bytes of them here"
    )
    with remote.session(model, expected_tokens=64, qos="interactive") as session:
        logits = session.prefill([1, 2, 3])
        print("the best token, chosen there:", int(logits.argmax(-1)))
        print("drawn there:", *session.generate(max_new_tokens=8, temperature=1.0, seed=0))
