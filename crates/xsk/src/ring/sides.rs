//! The memory of one ring, and the two sides that it is used from.
//!
//! Does not know what lies in the slots, nor whose it is: `ring` does.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::Mapping;

/// Where the parts of a ring lie in its mapping, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    producer: usize,
    consumer: usize,
    flags: usize,
    slots: usize,
}

impl From<libc::xdp_ring_offset> for Layout {
    fn from(offset: libc::xdp_ring_offset) -> Layout {
        Layout {
            producer: offset.producer as usize,
            consumer: offset.consumer as usize,
            flags: offset.flags as usize,
            slots: offset.desc as usize,
        }
    }
}

impl Layout {
    /// The indices on cache lines of their own, so that the two sides do not slow each other down.
    pub(super) const IN_MEMORY: Layout =
        Layout { producer: 0, consumer: 64, flags: 128, slots: 192 };

    /// Bytes to map for `entries` slots of `T`.
    pub(super) fn len<T>(&self, entries: u32) -> usize {
        self.slots + entries as usize * size_of::<T>()
    }
}

/// The shared memory of one ring.
#[derive(Clone, Debug)]
pub(super) struct Shared<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    slots: NonNull<T>,
    mask: u32,
    /// Keeps the mapping that the pointers point into.
    _memory: Arc<Mapping>,
    _slots: PhantomData<T>,
}

impl<T: Copy> Shared<T> {
    /// # Panics
    ///
    /// When `entries` is no power of two or the layout does not fit the mapping.
    pub(super) fn new(memory: Arc<Mapping>, layout: Layout, entries: u32) -> Shared<T> {
        assert!(entries.is_power_of_two(), "a ring of {entries} entries");
        let last = layout.producer.max(layout.consumer).max(layout.flags) + 4;
        assert!(last.max(layout.len::<T>(entries)) <= memory.len(), "{layout:?} is too long");
        let aligned = [layout.producer, layout.consumer, layout.flags, layout.slots / 2];
        assert!(aligned.iter().all(|at| at % 4 == 0), "{layout:?} is not aligned");
        // SAFETY: all four places were just checked to lie in the mapping, which starts on a page.
        let at = |offset: usize| unsafe { memory.start().add(offset) };
        Shared {
            producer: at(layout.producer).cast(),
            consumer: at(layout.consumer).cast(),
            flags: at(layout.flags).cast(),
            slots: at(layout.slots).cast(),
            mask: entries - 1,
            _memory: memory,
            _slots: PhantomData,
        }
    }

    pub(super) fn producer(&self) -> &AtomicU32 {
        // SAFETY: in the mapping and aligned (`new`), and only ever accessed atomically.
        unsafe { self.producer.as_ref() }
    }

    pub(super) fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as `producer`.
        unsafe { self.consumer.as_ref() }
    }

    pub(super) fn needs_wakeup(&self) -> bool {
        // SAFETY: as `producer`.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    #[cfg(test)]
    pub(super) fn set_needs_wakeup(&self, on: bool) {
        let value = if on { libc::XDP_RING_NEED_WAKEUP } else { 0 };
        // SAFETY: as `producer`.
        unsafe { self.flags.as_ref() }.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn slot(&self, index: u32) -> NonNull<T> {
        // SAFETY: the mask keeps the slot inside the `entries` slots that `new` checked.
        unsafe { self.slots.add((index & self.mask) as usize) }
    }

    /// Slots from one on, no more than there are: those up to the ring's end, and those from its beginning on.
    #[inline]
    fn run(&self, index: u32, count: usize) -> [NonNull<[T]>; 2] {
        let entries = self.mask as usize + 1;
        let count = count.min(entries);
        let first = count.min(entries - (index & self.mask) as usize);
        [
            NonNull::slice_from_raw_parts(self.slot(index), first),
            NonNull::slice_from_raw_parts(self.slots, count - first),
        ]
    }
}

/// The side of a ring that fills slots.
#[derive(Debug)]
pub(super) struct Producer<T> {
    pub(super) shared: Shared<T>,
    /// Index of the next slot to fill; ahead of the published index until [`Producer::publish`].
    head: u32,
    /// The consumer's index when last looked at; reading it anew costs a cache miss.
    consumer_seen: u32,
}

// SAFETY: the pointers lead into a mapping that may be used from any thread, and a producer is the
// only one that writes the slots between the two indices.
unsafe impl<T: Send> Send for Producer<T> {}

impl<T: Copy> Producer<T> {
    pub(super) fn new(shared: Shared<T>) -> Producer<T> {
        let head = shared.producer().load(Ordering::Acquire);
        Producer { head, consumer_seen: shared.consumer().load(Ordering::Acquire), shared }
    }

    /// Free slots, as far as known without looking at the consumer again.
    #[inline]
    pub(super) fn known_free(&self) -> u32 {
        let filled = self.head.wrapping_sub(self.consumer_seen);
        (self.shared.mask + 1).saturating_sub(filled)
    }

    #[inline]
    pub(super) fn free(&mut self) -> u32 {
        self.consumer_seen = self.shared.consumer().load(Ordering::Acquire);
        self.known_free()
    }

    #[inline]
    pub(super) fn put(&mut self, item: T) -> bool {
        if self.known_free() == 0 && self.free() == 0 {
            return false;
        }
        // SAFETY: the slot is free: the consumer has released it (acquired above) and it is not
        // published before `publish`.
        unsafe { self.shared.slot(self.head).write(item) };
        self.head = self.head.wrapping_add(1);
        true
    }

    /// Puts what `item` makes of the first of a run, as long as it makes something and there is room; of how many.
    #[inline]
    pub(super) fn put_run<S>(
        &mut self,
        run: &mut [S],
        mut item: impl FnMut(&mut S) -> Option<T>,
    ) -> usize {
        let room = match self.known_free() as usize {
            known if known >= run.len() => known,
            _ => self.free() as usize,
        };
        let most = room.min(run.len());
        let mut rest = &mut run[..most];
        let mut count = 0;
        'slots: for mut slots in self.shared.run(self.head, most) {
            // SAFETY: as in `put`: no more than `room` slots from the head on, of which each bit pattern is an item's.
            let slots = unsafe { slots.as_mut() };
            let (now, later) = rest.split_at_mut(slots.len());
            for (slot, source) in slots.iter_mut().zip(now) {
                let Some(item) = item(source) else { break 'slots };
                *slot = item;
                count += 1;
            }
            rest = later;
        }
        self.head = self.head.wrapping_add(count as u32);
        count
    }

    pub(super) fn publish(&mut self) {
        self.shared.producer().store(self.head, Ordering::Release);
    }

    /// Items put that the consumer has not released yet.
    pub(super) fn pending(&mut self) -> u32 {
        self.shared.mask + 1 - self.free()
    }
}

/// The side of a ring that empties slots.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    pub(super) shared: Shared<T>,
    /// Index of the next slot to read; ahead of the released index until [`Consumer::release`].
    tail: u32,
    /// The producer's index when last looked at.
    producer_seen: u32,
}

// SAFETY: as for `Producer`: the consumer is the only one that reads the published slots.
unsafe impl<T: Send> Send for Consumer<T> {}

impl<T: Copy> Consumer<T> {
    pub(super) fn new(shared: Shared<T>) -> Consumer<T> {
        let tail = shared.consumer().load(Ordering::Acquire);
        Consumer { tail, producer_seen: tail, shared }
    }

    #[inline]
    pub(super) fn available(&mut self) -> u32 {
        if self.producer_seen == self.tail {
            self.producer_seen = self.shared.producer().load(Ordering::Acquire);
        }
        self.producer_seen.wrapping_sub(self.tail)
    }

    #[inline]
    pub(super) fn take(&mut self) -> Option<T> {
        if self.available() == 0 {
            return None;
        }
        // SAFETY: the producer has published the slot (acquired in `available`) and does not touch
        // it before `release`.
        let item = unsafe { self.shared.slot(self.tail).read() };
        self.tail = self.tail.wrapping_add(1);
        Some(item)
    }

    /// Takes a run of up to `max` items; how many.
    #[inline]
    pub(super) fn take_run(&mut self, max: usize, mut take: impl FnMut(T)) -> usize {
        let count = (self.available() as usize).min(max);
        for slots in self.shared.run(self.tail, count) {
            // SAFETY: as in `take`: no more than `available` slots from the tail on.
            unsafe { slots.as_ref() }.iter().for_each(|item| take(*item));
        }
        self.tail = self.tail.wrapping_add(count as u32);
        count
    }

    pub(super) fn release(&mut self) {
        self.shared.consumer().store(self.tail, Ordering::Release);
    }
}
