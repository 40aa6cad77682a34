"""Three agents on one engine: each reads a task, thinks, waits for a tool, and goes on, in the room of two.

    python examples/agent.py

The model has random weights, so the text says nothing; what counts is that every agent has the tokens that it has
alone, though sessions that wait make room for those that think, and that what an agent knows is not read twice.
"""

import asyncio

import torch
import transformers

import tmmu

AGENTS, THOUGHT, TOOL_SECONDS = 3, 12, 0.05
TASKS = [[7, 11, 13], [17, 19, 23, 29], [31, 37]]
ANSWER = [41, 43, 47]  # what the tool says, as tokens


def language_model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=500, max_position_embeddings=256,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


async def agent(engine, task):
    """What the agent has said: before it used its tool, and after."""
    with engine.open(max_tokens=64) as session:
        said = [token async for token in session.generate_async(task, THOUGHT, stop=())]
        session.wait(expected=TOOL_SECONDS, kind="tool")  # others may have the room meanwhile
        await asyncio.sleep(TOOL_SECONDS)
        # The last token that was said is not in the state yet, so it comes before the answer.
        said += [token async for token in session.generate_async([said[-1], *ANSWER], THOUGHT, stop=())]
        return said


async def together(engine):
    return await asyncio.gather(*(agent(engine, task) for task in TASKS))


async def one_by_one(engine):
    return [await agent(engine, task) for task in TASKS]


def main():
    model = language_model()
    with tmmu.Engine(model, max_tokens=64, max_batch=2, max_sessions=1) as engine:
        alone = asyncio.run(one_by_one(engine))
        room = engine.usage["data"].capacity
    with tmmu.Engine(model, max_tokens=64, max_batch=2, max_sessions=2, host="16MB", policy="hint") as engine:
        said = asyncio.run(together(engine))
        counts = engine.host.counts
        print(f"{AGENTS} agents in {engine.usage['data'].capacity} bytes, one takes {room}")
        print("tokens as alone:", said == alone)
        print("sessions left for the host:", counts.sessions_out > 0)


if __name__ == "__main__":
    main()
