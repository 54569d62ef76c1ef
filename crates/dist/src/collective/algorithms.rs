//! The collective algorithms, over any [`Transport`].
//!
//! Large arrays travel around a ring in chunks, so that a rank reduces one chunk while the next one is on its way. Small ones
//! are gathered in `log2(ranks)` rounds and reduced by every rank itself. Which ranks' numbers are added in which order depends
//! only on the number of ranks and the length of the array, and all ranks get the same bits.

use std::ops::Range;

use bytemuck::Pod;
use half::bf16;
use half::slice::HalfFloatSliceExt;
use multiversion::multiversion;

use super::transport::Transport;
use crate::error::Result;
use crate::server::Reduce;

/// Bytes of one exchange on the ring: small enough to stay in the cache until they are reduced.
const CHUNK: usize = 128 << 10;
/// Arrays of fewer bytes, times the number of ranks, are gathered instead of sent around the ring.
const SMALL: usize = 32 << 10;

/// A number that can be reduced.
pub trait Element: Pod + PartialOrd + Send + Sync {
    /// The number of the type, by which ranks compare what they reduce.
    const CODE: u32;

    /// Reduces `other` into `into`, element by element; for a mean, adds it.
    fn reduce(op: Reduce, into: &mut [Self], other: &[Self]);

    /// The number that changes nothing: what a rank without numbers contributes.
    fn neutral(op: Reduce) -> Self;

    /// Divides a sum by the number of ranks; integers are rounded towards zero.
    fn divide(values: &mut [Self], count: usize);

    /// The number as the servers of a job reduce it.
    fn to_f64(self) -> f64;

    /// The number of this type that is nearest to a result of the servers.
    fn from_f64(value: f64) -> Self;
}

macro_rules! element {
    ($type:ty, $code:expr, $zero:expr, $lowest:expr, $highest:expr, $add:expr) => {
        impl Element for $type {
            const CODE: u32 = $code;

            fn reduce(op: Reduce, into: &mut [Self], other: &[Self]) {
                let pairs = into.iter_mut().zip(other);
                match op {
                    Reduce::Sum | Reduce::Mean => $add(into, other),
                    Reduce::Max => pairs.for_each(|(into, &other)| *into = larger(*into, other)),
                    Reduce::Min => pairs.for_each(|(into, &other)| *into = smaller(*into, other)),
                }
            }

            fn neutral(op: Reduce) -> Self {
                match op {
                    Reduce::Sum | Reduce::Mean => $zero,
                    Reduce::Max => $lowest,
                    Reduce::Min => $highest,
                }
            }

            fn divide(values: &mut [Self], count: usize) {
                values.iter_mut().for_each(|value| *value /= count as $type);
            }

            fn to_f64(self) -> f64 {
                self as f64
            }

            fn from_f64(value: f64) -> Self {
                value as $type
            }
        }
    };
}

element!(f32, 1, 0.0, f32::NEG_INFINITY, f32::INFINITY, add_f32);
element!(f64, 2, 0.0, f64::NEG_INFINITY, f64::INFINITY, add_f64);
element!(i64, 3, 0, i64::MIN, i64::MAX, add_i64);

macro_rules! add {
    ($name:ident, $type:ty, $add:expr) => {
        #[multiversion(targets("x86_64+avx2"))]
        fn $name(into: &mut [$type], other: &[$type]) {
            into.iter_mut().zip(other).for_each(|(into, &other)| *into = $add(*into, other));
        }
    };
}

add!(add_f32, f32, std::ops::Add::add);
add!(add_f64, f64, std::ops::Add::add);
add!(add_i64, i64, i64::wrapping_add);

// NaN wins, whichever side it is on: it is a result that the user has to see.
#[expect(clippy::eq_op, reason = "only NaN differs from itself")]
fn larger<T: PartialOrd + Copy>(a: T, b: T) -> T {
    if a > b || a != a { a } else { b }
}

#[expect(clippy::eq_op, reason = "only NaN differs from itself")]
fn smaller<T: PartialOrd + Copy>(a: T, b: T) -> T {
    if a < b || a != a { a } else { b }
}

/// Reduces the arrays of all ranks, which have the same length. Every rank gets the result; for a mean, the sum, which the
/// caller divides by the number of ranks that contribute.
pub fn all_reduce<T: Element>(transport: &dyn Transport, op: Reduce, values: &mut [T]) -> Result<()> {
    let bytes = size_of_val(values);
    if transport.size() == 1 || values.is_empty() {
        return Ok(());
    }
    if bytes * transport.size() <= SMALL {
        let mut all = vec![T::neutral(op); values.len() * transport.size()];
        all_gather(transport, bytemuck::cast_slice(values), bytemuck::cast_slice_mut(&mut all))?;
        let mut ranks = all.chunks_exact(values.len());
        if let Some(first) = ranks.next() {
            values.copy_from_slice(first);
        }
        ranks.for_each(|other| T::reduce(op, values, other));
        return Ok(());
    }
    ring_reduce_scatter(transport, &Full(op), values)?;
    ring_all_gather(transport, &Full(op), values)
}

/// Adds up the arrays of all ranks with 16 bits per number on the wire. Every rank gets the same result.
pub fn all_reduce_narrow(transport: &dyn Transport, values: &mut [f32]) -> Result<()> {
    if transport.size() == 1 || values.is_empty() {
        return Ok(());
    }
    ring_reduce_scatter(transport, &Narrow, values)?;
    ring_all_gather(transport, &Narrow, values)
}

/// Reduces the arrays of all ranks, of which every rank gets its own [`part`]. `values` is scratch afterwards.
pub fn reduce_scatter<T: Element>(transport: &dyn Transport, op: Reduce, values: &mut [T]) -> Result<Vec<T>> {
    if transport.size() > 1 {
        ring_reduce_scatter(transport, &Full(op), values)?;
    }
    Ok(values[part(values.len(), transport.rank(), transport.size())].to_vec())
}

/// Gathers one block of bytes per rank, all of the same length, in rank order. Takes `log2(ranks)` rounds.
pub fn all_gather(transport: &dyn Transport, mine: &[u8], all: &mut [u8]) -> Result<()> {
    let (rank, size, block) = (transport.rank(), transport.size(), mine.len());
    // The blocks of rank, rank + 1, ...: each round doubles how many are known.
    let mut known = vec![0; block * size];
    known[..block].copy_from_slice(mine);
    let mut count = 1;
    while count < size {
        let more = count.min(size - count);
        let (have, next) = known.split_at_mut(count * block);
        let (to, from) = ((rank + size - count) % size, (rank + count) % size);
        transport.exchange(to, &have[..more * block], from, &mut next[..more * block])?;
        count += more;
    }
    for (distance, bytes) in known.chunks_exact(block.max(1)).enumerate().take(if block == 0 { 0 } else { size }) {
        let at = (rank + distance) % size;
        all[at * block..][..block].copy_from_slice(bytes);
    }
    Ok(())
}

/// Gathers one block of bytes per rank, of the given lengths, one after the other in rank order.
pub fn all_gather_varied(transport: &dyn Transport, mine: &[u8], lengths: &[usize], all: &mut [u8]) -> Result<()> {
    let (rank, size) = (transport.rank(), transport.size());
    let starts: Vec<usize> = lengths
        .iter()
        .scan(0, |end, length| {
            *end += length;
            Some(*end - length)
        })
        .collect();
    let block = |rank: usize| starts[rank]..starts[rank] + lengths[rank];
    all[block(rank)].copy_from_slice(mine);
    for step in 0..size - 1 {
        let (send, receive) = (block((rank + size - step) % size), block((rank + 2 * size - step - 1) % size));
        each_chunk(send, receive, CHUNK, |send, receive| {
            let (send, receive) = disjoint(all, send, receive);
            transport.exchange((rank + 1) % size, send, (rank + size - 1) % size, receive)
        })?;
    }
    Ok(())
}

/// Copies the bytes of one rank to all others, along a binomial tree.
pub fn broadcast(transport: &dyn Transport, root: usize, bytes: &mut [u8]) -> Result<()> {
    let (size, distance) = (transport.size(), (transport.rank() + transport.size() - root) % transport.size());
    let of = |distance: usize| (distance + root) % size;
    let mut reach = 1;
    while reach < size {
        if distance < reach && distance + reach < size {
            transport.exchange(of(distance + reach), bytes, of(distance), &mut [])?;
        } else if (reach..2 * reach).contains(&distance) {
            transport.exchange(of(distance), &[], of(distance - reach), bytes)?;
        }
        reach *= 2;
    }
    Ok(())
}

/// The part of an array that belongs to a rank: contiguous, in rank order, the first ones one element longer.
pub fn part(length: usize, rank: usize, size: usize) -> Range<usize> {
    let (each, rest) = (length / size, length % size);
    let start = rank * each + rank.min(rest);
    start..start + each + usize::from(rank < rest)
}

/// How the numbers of an array travel.
trait Wire<T> {
    /// Bytes per number.
    const WIDTH: usize;

    /// The bytes of numbers, in `room` if they are not the numbers themselves.
    fn encode<'a>(&self, values: &'a [T], room: &'a mut Vec<u8>) -> &'a [u8];

    /// Reduces received bytes into numbers.
    fn reduce(&self, bytes: &[u8], into: &mut [T]);

    /// Rounds numbers to what the others receive.
    fn round(&self, _values: &mut [T]) {}

    /// Replaces numbers by received bytes.
    fn decode(&self, bytes: &[u8], into: &mut [T]);

    /// The bytes of numbers that received bytes replace as they are; `None` if they have to be decoded.
    fn in_place<'a>(&self, _values: &'a mut [T]) -> Option<&'a mut [u8]> {
        None
    }
}

/// The numbers as they are.
struct Full(Reduce);

impl<T: Element> Wire<T> for Full {
    const WIDTH: usize = size_of::<T>();

    fn encode<'a>(&self, values: &'a [T], _room: &'a mut Vec<u8>) -> &'a [u8] {
        bytemuck::cast_slice(values)
    }

    fn reduce(&self, bytes: &[u8], into: &mut [T]) {
        T::reduce(self.0, into, bytemuck::cast_slice(bytes));
    }

    fn decode(&self, bytes: &[u8], into: &mut [T]) {
        into.copy_from_slice(bytemuck::cast_slice(bytes));
    }

    fn in_place<'a>(&self, values: &'a mut [T]) -> Option<&'a mut [u8]> {
        Some(bytemuck::cast_slice_mut(values))
    }
}

/// Sums of floats, rounded to `bfloat16` for every hop.
struct Narrow;

impl Wire<f32> for Narrow {
    const WIDTH: usize = size_of::<bf16>();

    fn encode<'a>(&self, values: &'a [f32], room: &'a mut Vec<u8>) -> &'a [u8] {
        room.resize(values.len() * Self::WIDTH, 0);
        bytemuck::cast_slice_mut::<_, bf16>(room).convert_from_f32_slice(values);
        room
    }

    fn reduce(&self, bytes: &[u8], into: &mut [f32]) {
        add_narrow(bytemuck::cast_slice(bytes), into);
    }

    fn round(&self, values: &mut [f32]) {
        values.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
    }

    fn decode(&self, bytes: &[u8], into: &mut [f32]) {
        bytemuck::cast_slice::<_, bf16>(bytes).convert_to_f32_slice(into);
    }
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn add_narrow(narrow: &[bf16], into: &mut [f32]) {
    for (into, narrow) in into.iter_mut().zip(narrow) {
        *into += f32::from_bits(u32::from(narrow.to_bits()) << 16);
    }
}

/// Afterwards every rank has the reduced numbers of its own part; the other parts are partial results.
fn ring_reduce_scatter<T: Element, W: Wire<T>>(transport: &dyn Transport, wire: &W, values: &mut [T]) -> Result<()> {
    let (rank, size, length) = (transport.rank(), transport.size(), values.len());
    let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);
    let (mut room, mut received) = (Vec::new(), aligned(CHUNK));
    for step in 0..size - 1 {
        let send = part(length, (rank + 2 * size - step - 1) % size, size);
        let receive = part(length, (rank + 2 * size - step - 2) % size, size);
        each_chunk(send, receive, CHUNK / W::WIDTH, |send, receive| {
            let bytes = &mut bytemuck::cast_slice_mut(&mut received)[..receive.len() * W::WIDTH];
            transport.exchange(right, wire.encode(&values[send], &mut room), left, bytes)?;
            wire.reduce(bytes, &mut values[receive]);
            Ok(())
        })?;
    }
    Ok(())
}

/// Completes an all-reduce: every rank has its own part and gets the others'.
fn ring_all_gather<T: Element, W: Wire<T>>(transport: &dyn Transport, wire: &W, values: &mut [T]) -> Result<()> {
    let (rank, size, length) = (transport.rank(), transport.size(), values.len());
    let (right, left) = ((rank + 1) % size, (rank + size - 1) % size);
    let (mut room, mut received) = (Vec::new(), aligned(CHUNK));
    wire.round(&mut values[part(length, rank, size)]);
    for step in 0..size - 1 {
        let send = part(length, (rank + size - step) % size, size);
        let receive = part(length, (rank + 2 * size - step - 1) % size, size);
        each_chunk(send, receive, CHUNK / W::WIDTH, |send, receive| {
            let bytes = &mut bytemuck::cast_slice_mut(&mut received)[..receive.len() * W::WIDTH];
            let (sent, replaced) = disjoint(values, send, receive);
            let sent = wire.encode(sent, &mut room);
            if let Some(in_place) = wire.in_place(replaced) {
                return transport.exchange(right, sent, left, in_place);
            }
            transport.exchange(right, sent, left, bytes)?;
            wire.decode(bytes, replaced);
            Ok(())
        })?;
    }
    Ok(())
}

/// A buffer that numbers of any type can be read from in place.
fn aligned(bytes: usize) -> Vec<u64> {
    vec![0; bytes.div_ceil(8)]
}

/// Calls `exchange` with two ranges in chunks of at most `chunk` elements each.
fn each_chunk(
    send: Range<usize>,
    receive: Range<usize>,
    chunk: usize,
    mut exchange: impl FnMut(Range<usize>, Range<usize>) -> Result<()>,
) -> Result<()> {
    let chunks = send.len().max(receive.len()).div_ceil(chunk);
    let piece = |of: &Range<usize>, at: usize| {
        let start = (of.start + at * chunk).min(of.end);
        start..(start + chunk).min(of.end)
    };
    (0..chunks).try_for_each(|at| exchange(piece(&send, at), piece(&receive, at)))
}

/// Two ranges of one array that do not overlap, one of them mutable.
fn disjoint<T>(all: &mut [T], send: Range<usize>, receive: Range<usize>) -> (&[T], &mut [T]) {
    if send.end <= receive.start {
        let (before, after) = all.split_at_mut(receive.start);
        (&before[send], &mut after[..receive.len()])
    } else {
        let (before, after) = all.split_at_mut(send.start);
        (&after[..send.len()], &mut before[receive])
    }
}
