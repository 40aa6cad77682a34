"""Where fake kernels and real ones disagree, the recorder follows the real ones.

Three rules of ``results``, applied to each call in this order: a call that a real kernel refuses is refused
(``require_real_kernel``), so that what a user would be told when running the model, they are told when planning; a call
that real kernels take and fake ones refuse gets its result here (``result_of_real_kernel``); a result whose dtype,
strides or size the fake kernel gets wrong is mended (``correct_result``). Each rule is a pure function of the call's
own arguments and knows its operators by name: a call of any other operator is left as it is. A new disagreement is
one more row or branch in this room, and a test that runs the real kernel.
"""
