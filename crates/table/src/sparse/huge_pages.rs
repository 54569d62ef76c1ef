//! Memory on pages of 2 MiB.
//!
//! A table of 50 million rows has far more pages of 4 KiB than the TLB has entries, so almost every row costs another access to
//! memory, for the page table.

/// Asks for huge pages for the part of new memory that they can hold. Call it before the memory is used. It is a request: a kernel
/// may refuse it, and nothing but the speed depends on it.
#[cfg(target_os = "linux")]
pub(super) fn use_huge_pages<T>(memory: &mut [T]) {
    const HUGE_PAGE: usize = 2 << 20;
    let range = memory.as_mut_ptr_range();
    let start = range.start.addr().next_multiple_of(HUGE_PAGE);
    let end = range.end.addr() / HUGE_PAGE * HUGE_PAGE;
    if start >= end {
        return;
    }
    let advice = rustix::mm::Advice::LinuxHugepage;
    // SAFETY: the range is inside of `memory`, which is borrowed mutably, and this advice does not change what memory contains,
    // only the size of the pages that hold it.
    let _ = unsafe { rustix::mm::madvise(range.start.with_addr(start).cast(), end - start, advice) };
}

#[cfg(not(target_os = "linux"))]
pub(super) fn use_huge_pages<T>(_memory: &mut [T]) {}
