//! Prefetching memory before it is needed.
//!
//! A lookup is two dependent cache misses; the misses of a batch overlap if each is requested early. This is only a hint: it
//! changes no value and cannot fault, so a wrong address only costs time.

/// Prefetches the cache lines of the first `count` elements of `slice` from `start` on, as far as they exist.
#[inline(always)]
pub(crate) fn prefetch<T>(slice: &[T], start: usize, count: usize) {
    const LINE_BYTES: usize = 64;
    let end = (start + count).min(slice.len());
    if start >= end {
        return;
    }
    let first = slice.as_ptr().wrapping_add(start).addr() & !(LINE_BYTES - 1);
    let last = slice.as_ptr().wrapping_add(end).addr() - 1;
    let mut line = first;
    while line <= last {
        prefetch_line(slice.as_ptr().with_addr(line).cast());
        line += LINE_BYTES;
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch_line(address: *const i8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: SSE is part of every x86_64, and the instruction reads nothing architecturally: by the processor's manual
    // it raises no fault for any address, mapped or not.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address) }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn prefetch_line(_address: *const i8) {}
