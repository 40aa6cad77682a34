"""Kernels that are safe to call: a place out of range is noted, and no exception leaves them."""

import pytest

from tmmu.fusion.kernel_text import UnknownText, safe_kernel

KERNEL = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(const int64_t* in_ptr0, float* out_ptr0)
{
    #pragma omp parallel
    {
        for(int64_t x0=0; x0<4; x0+=1)
        {
            {
                auto tmp0 = in_ptr0[x0];
                CHECK((0 <= tmp0) & (tmp0 < f(10L, 2)), "index out of bounds: (0 <= tmp0), \\"); it");
                out_ptr0[x0] = tmp0;
            }
        }
    }
}
"""
TYPES = ("const int64_t*", "float*")


@pytest.mark.parametrize("macro", ["TORCH_CHECK", "AOTI_TORCH_CHECK"])
def test_a_check_leaves_its_turn_out_and_is_returned(macro: str) -> None:
    text = safe_kernel(KERNEL.replace("CHECK", macro).replace('\\"); it', "it"), TYPES, "ab12")
    assert "if (!((0 <= tmp0) & (tmp0 < f(10L, 2)))) { tmmu_fault.store(1); continue; }" in text
    assert macro not in text
    assert 'extern "C"  int kernel_ab12(' in text
    assert "return tmmu_fault.load();" in text
    assert "kernel_ab12((const int64_t*)pointers[0], (float*)pointers[1])" in text
    assert "#include" not in text


def test_a_kernel_without_a_check_is_as_it_is() -> None:
    lines = [line for line in KERNEL.splitlines() if "CHECK" not in line]
    text = safe_kernel("\n".join(lines), TYPES, "ab12")
    assert all(line in text for line in lines if line.startswith("   "))


@pytest.mark.parametrize(
    "text",
    [
        "no function",
        'extern "C" void kernel(int* a) { TORCH_CHECK(a[0] < 3, "out"); }',
        'extern "C" void kernel(int* a) { for (;;) { } { TORCH_CHECK(a[0] < 3, "out"); } }',
        'extern "C" void kernel(int* a) { for (;;) { TORCH_CHECK(a[0] < 3 } }',
    ],
)
def test_other_texts_are_no_kernels(text: str) -> None:
    with pytest.raises(UnknownText):
        safe_kernel(text, ("int*",), "ab12")
