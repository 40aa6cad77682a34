"""The text of PYTORCH_ALLOC_CONF, as torch reads it where it is right, and one clear line where it is not."""

import pytest

from tmmu.eager.allocator_config import MIB, AllocatorConfig, parse_allocator_config
from tmmu.errors import InvalidConfig


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("", AllocatorConfig()),
        ("  ", AllocatorConfig()),
        ("max_split_size_mb:128", AllocatorConfig(max_split_bytes=128 * MIB)),
        (" max_split_size_mb : 1 28 ,", AllocatorConfig(max_split_bytes=128 * MIB)),
        ("max_split_size_mb:30,max_split_size_mb:40", AllocatorConfig(max_split_bytes=40 * MIB)),
        ("max_split_size_mb:99999999999999999999", AllocatorConfig(max_split_bytes=(2**44 - 1) * MIB)),
        ("max_non_split_rounding_mb:20", AllocatorConfig(max_non_split_rounding_bytes=20 * MIB)),
        ("large_segment_size_mb:11", AllocatorConfig(large_segment_bytes=11 * MIB)),
        ("expandable_segments:True", AllocatorConfig(expandable_segments=True)),
        ("expandable_segments:False", AllocatorConfig()),
        ("garbage_collection_threshold:0.8", AllocatorConfig(garbage_collection_threshold=0.8)),
        ("per_process_memory_fraction:0.25", AllocatorConfig(per_process_memory_fraction=0.25)),
        ("per_process_memory_fraction:1", AllocatorConfig()),
        ("roundup_power2_divisions:8", AllocatorConfig(roundup_power2_divisions=(8,) * 16)),
        (
            "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
            AllocatorConfig(roundup_power2_divisions=(1,) * 9 + (2, 4) + (8,) * 5),
        ),
        (
            "roundup_power2_divisions:[64:8,1024:4]",
            AllocatorConfig(roundup_power2_divisions=(8,) * 7 + (0,) * 3 + (4,) + (0,) * 5),
        ),
        ("roundup_power2_divisions:[1:0,131072:2]", AllocatorConfig(roundup_power2_divisions=(0,) * 15 + (2,))),
        (
            "roundup_power2_divisions:[>:4,8:2]",
            AllocatorConfig(roundup_power2_divisions=(2,) * 4 + (4,) * 12),
        ),
        ("roundup_power2_divisions:[]", AllocatorConfig()),
        ("backend:native,pinned_use_background_threads:True,release_lock_on_cudamalloc:True", AllocatorConfig()),
        (
            "expandable_segments:True,roundup_power2_divisions:[>:4],max_split_size_mb:20",
            AllocatorConfig(
                expandable_segments=True, roundup_power2_divisions=(0, *(4,) * 15), max_split_bytes=20 * MIB
            ),
        ),
    ],
)
def test_settings_are_read_as_torch_reads_them(text: str, config: AllocatorConfig) -> None:
    assert parse_allocator_config(text) == config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_split_size_mb", "'max_split_size_mb' is no key:value pair"),
        ("max_split_size_mb=30", "'max_split_size_mb=30' is no key:value pair"),
        ("max_split_size_mb:", "'max_split_size_mb:' is no key:value pair"),
        ("max_split_size_mb:30,,backend:native", "'' is no key:value pair"),
        (",", "'' is no key:value pair"),
        ("max_split_size_mb:19", "max_split_size_mb:19 is too small (at least 20)"),
        ("large_segment_size_mb:32,max_split_size_mb:31", "max_split_size_mb:31 is too small (at least 32)"),
        ("large_segment_size_mb:10", "large_segment_size_mb:10 is too small (at least 11)"),
        ("max_non_split_rounding_mb:1", "max_non_split_rounding_mb:1 is too small"),
        ("max_split_size_mb:-5", "max_split_size_mb:-5 is no whole number"),
        ("max_split_size_mb:30x", "max_split_size_mb:30x is no whole number"),
        ("max_split_size_mb:²⁰", "is no whole number"),
        ("expandable_segments:true", "expandable_segments:true is neither True nor False"),
        ("garbage_collection_threshold:1.0", "garbage_collection_threshold:1.0 is out of range"),
        ("garbage_collection_threshold:0", "garbage_collection_threshold:0 is out of range"),
        ("garbage_collection_threshold:nan", "garbage_collection_threshold:nan is out of range"),
        ("per_process_memory_fraction:1.5", "per_process_memory_fraction:1.5 is out of range"),
        ("per_process_memory_fraction:half", "per_process_memory_fraction:half is out of range"),
        ("roundup_power2_divisions:3", "roundup_power2_divisions: 3 is no power of two"),
        ("roundup_power2_divisions:0", "roundup_power2_divisions: 0 is no power of two"),
        ("roundup_power2_divisions:[3:8]", "roundup_power2_divisions: 3 is no power of two"),
        ("roundup_power2_divisions:[4:3]", "roundup_power2_divisions: 3 is no power of two"),
        ("roundup_power2_divisions:[4]", "roundup_power2_divisions: '4' is no MiB:divisions pair"),
        ("roundup_power2_divisions:[4:]", "roundup_power2_divisions: is no whole number"),
        ("roundup_power2_divisions:[64:8", "roundup_power2_divisions:[64:8 has no closing ]"),
        ("backend:cudaMallocAsync", "backend:cudaMallocAsync is not modelled"),
        ("max_split_size:30", "unknown setting 'max_split_size'"),
    ],
)
def test_wrong_settings_are_one_clear_line(text: str, words: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_allocator_config(text)
    assert str(caught.value).startswith("INVALID_CONFIG: allocator settings: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
