"""CPU stand-in for sgl_kernel, for tests: three operators in torch; any other name imports, and raises when called."""

import ctypes

__version__ = "0.4.5"


def _windows(rows, starts, ends):
    """Yield (table row, start, end, offset into the packed locations) of each request."""
    offset = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        yield row, start, end, offset
        offset += end - start


def assign_req_to_token_pool_cpu(rows, table, starts, ends, locations, pool_len):
    for row, start, end, at in _windows(rows, starts, ends):
        table[row, start:end] = locations[at : at + end - start].to(table.dtype)


def assign_extend_cache_locs_cpu(rows, table, starts, ends, locations, pool_len):
    for row, start, end, at in _windows(rows, starts, ends):
        locations[at : at + end - start] = table[row, start:end].to(locations.dtype)


def copy_all_layer_kv_cache_cpu(buffers, row_bytes, targets, sources):
    """Move rows within each buffer (raw addresses). All sources are read before any target is written. SGLang tries it
    when it makes a pool."""
    for address, size in zip(buffers.tolist(), row_bytes.tolist(), strict=True):
        rows = [ctypes.string_at(address + source * size, size) for source in sources.tolist()]
        for target, row in zip(targets.tolist(), rows, strict=True):
            ctypes.memmove(address + target * size, row, size)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} is not in the CPU stand-in")

    missing.__name__ = name
    return missing
