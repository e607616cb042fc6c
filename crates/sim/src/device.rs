//! A block device in virtual time: requests wait in a queue, take a while, come back in any order, and sometimes fail.
//!
//! A swap device is one whose blocks are pages. The device keeps its contents; a request that fails has changed nothing or,
//! for a store, perhaps the first half of the block, as a real one may after power was lost. Latency is a floor and an exponential tail.

use crate::history::AddressMap;
use crate::machine::Machine;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::ptr::NonNull;
use flagstone_seeded::{Fault, Rng};
use flagstone_types::{Nanos, Pfn};

/// What a device is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceModel {
    /// Blocks that it has; each is a page.
    pub blocks: u64,
    /// Requests that may be under way.
    pub depth: usize,
    /// No request takes less.
    pub floor: Nanos,
    /// The mean of what it takes beyond.
    pub tail: Nanos,
    /// How long the device is busy with one block before it begins the next: its bandwidth.
    pub block: Nanos,
}

impl DeviceModel {
    /// A flash drive on PCI Express: 80 µs and a tail of 20 µs, 128 requests, 3 GB/s (data sheets of enterprise drives of 2020; 4 KiB random reads).
    #[must_use]
    pub const fn flash(blocks: u64) -> Self {
        Self {
            blocks,
            depth: 128,
            floor: Nanos(80_000),
            tail: Nanos(20_000),
            block: Nanos(1_365),
        }
    }

    /// A disk of 7,200 rotations a minute: half a rotation and a short seek, 32 requests, 150 MB/s.
    #[must_use]
    pub const fn disk(blocks: u64) -> Self {
        Self {
            blocks,
            depth: 32,
            floor: Nanos(1_000_000),
            tail: Nanos(7_000_000),
            block: Nanos(27_000),
        }
    }
}

/// What is asked of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Reads a block into a frame.
    Read {
        /// From this block.
        block: u64,
        /// Into this frame.
        into: Pfn,
    },
    /// Writes a frame to a block. The frame is read while the request is under way.
    Write {
        /// To this block.
        block: u64,
        /// From this frame.
        from: Pfn,
    },
    /// Forgets what a block held; it then reads as zero.
    Discard {
        /// This block.
        block: u64,
    },
}

impl Request {
    const fn block(self) -> u64 {
        match self {
            Self::Read { block, .. } | Self::Write { block, .. } | Self::Discard { block } => block,
        }
    }
}

/// Names a request until it was polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// Why a request was not accepted; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// As many are under way as the device takes.
    Full,
    /// There is no such block.
    NoSuchBlock(u64),
    /// There is no such frame.
    NoSuchFrame(Pfn),
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the device's queue is full"),
            Self::NoSuchBlock(block) => write!(f, "the device has no block {block}"),
            Self::NoSuchFrame(pfn) => write!(f, "there is no frame {pfn}"),
        }
    }
}

impl core::error::Error for SubmitError {}

/// A request failed in the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoError {
    /// What was asked.
    pub request: Request,
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "input/output error: {:?}", self.request)
    }
}

impl core::error::Error for IoError {}

/// A request that has come back.
pub type Completion = (Ticket, Result<Request, IoError>);

#[derive(Debug)]
struct UnderWay {
    ticket: Ticket,
    request: Request,
    due: u64,
    fails: bool,
}

/// A device of a machine.
#[derive(Debug)]
pub struct Device<'m, const SHIFT: u32 = 12, const ORDER: u32 = 9> {
    machine: &'m Machine<SHIFT, ORDER>,
    model: DeviceModel,
    rng: Rng,
    contents: RefCell<AddressMap<Box<[u8]>>>,
    queue: RefCell<Vec<UnderWay>>,
    next: Cell<u64>,
    /// When the device is done with what it was given.
    busy_until: Cell<u64>,
    faults: Cell<(Fault, u64)>,
}

impl<'m, const SHIFT: u32, const ORDER: u32> Device<'m, SHIFT, ORDER> {
    /// A device whose blocks are zero. `seed` decides its latencies and failures.
    #[must_use]
    pub fn new(machine: &'m Machine<SHIFT, ORDER>, model: DeviceModel, seed: u64) -> Self {
        Self {
            machine,
            model,
            rng: Rng::new(seed),
            contents: RefCell::default(),
            queue: RefCell::default(),
            next: Cell::new(0),
            busy_until: Cell::new(0),
            faults: Cell::new((Fault::Never, 0)),
        }
    }

    /// Orders requests to fail from now on as `fault` says.
    pub fn inject(&self, fault: Fault) {
        self.faults.set((fault, 0));
    }

    /// Requests under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.queue.borrow().len()
    }

    fn fails(&self) -> bool {
        let (fault, calls) = self.faults.get();
        self.faults.set((fault, calls + 1));
        match fault {
            Fault::Never => false,
            Fault::Nth(n) => calls + 1 == n,
            Fault::From(n) => calls + 1 >= n,
            Fault::Chance(of_256) => self.rng.chance(of_256),
        }
    }

    /// An exponential time with the model's mean, in whole nanoseconds.
    fn tail(&self) -> u64 {
        // -ln(u) by halvings: each leading zero of a random word is one more ln 2.
        let bits = self.rng.bits();
        let halvings = u64::from(bits.leading_zeros());
        let rest = bits << (halvings + 1).min(63) >> 54;
        (halvings * 1024 + 1024 - rest) * self.model.tail.0 * 693 / 1_024_000
    }

    /// Gives the device a request.
    ///
    /// # Errors
    /// The queue is full, or the block or frame does not exist.
    pub fn submit(&self, request: Request) -> Result<Ticket, SubmitError> {
        self.machine.step();
        if request.block() >= self.model.blocks {
            return Err(SubmitError::NoSuchBlock(request.block()));
        }
        if let Request::Read { into: pfn, .. } | Request::Write { from: pfn, .. } = request
            && self.machine.hooks().frame(pfn).is_none()
        {
            return Err(SubmitError::NoSuchFrame(pfn));
        }
        let mut queue = self.queue.borrow_mut();
        if queue.len() >= self.model.depth {
            return Err(SubmitError::Full);
        }
        let ticket = Ticket(self.next.get());
        self.next.set(ticket.0 + 1);
        let start = self.busy_until.get().max(self.machine.hooks().now().0);
        self.busy_until.set(start + self.model.block.0);
        queue.push(UnderWay {
            ticket,
            request,
            due: start + self.model.block.0 + self.model.floor.0 + self.tail(),
            fails: self.fails(),
        });
        Ok(ticket)
    }

    /// Copies a block into a frame.
    fn load(&self, into: Pfn, block: &[u8]) {
        if let Some(frame) = self.machine.hooks().frame(into) {
            // SAFETY: B5 of seeded's model: a frame is whole, and a block has its size; M3: nobody else runs while the device copies, and who
            // submitted the request has given the frame to the device until it comes back.
            unsafe { frame.copy_from_nonoverlapping(NonNull::from(block).cast(), block.len()) };
        }
    }

    /// Copies the beginning of a frame into (that much of) a block.
    fn store(&self, from: Pfn, block: &mut [u8]) {
        if let Some(frame) = self.machine.hooks().frame(from) {
            // SAFETY: as in `load`.
            unsafe { frame.copy_to_nonoverlapping(NonNull::from(&mut *block).cast(), block.len()) };
        }
    }

    fn complete(&self, request: Request, fails: bool) -> Result<Request, IoError> {
        let mut contents = self.contents.borrow_mut();
        match request {
            Request::Read { block, into } if !fails => {
                let stored = contents
                    .entry(block)
                    .or_insert_with(|| vec![0; 1 << SHIFT].into());
                self.load(into, stored);
            }
            Request::Write { block, from } => {
                let stored = contents
                    .entry(block)
                    .or_insert_with(|| vec![0; 1 << SHIFT].into());
                if !fails {
                    self.store(from, stored);
                } else if self.rng.chance(128) {
                    self.store(from, &mut stored[..1 << (SHIFT - 1)]);
                }
            }
            Request::Discard { block } if !fails => {
                contents.remove(&block);
            }
            Request::Read { .. } | Request::Discard { .. } => {}
        }
        if fails {
            Err(IoError { request })
        } else {
            Ok(request)
        }
    }

    /// Takes back one request that is done, if there is one; of several, any. Never waits.
    pub fn poll(&self) -> Option<Completion> {
        self.machine.step();
        let now = self.machine.hooks().now().0;
        let mut queue = self.queue.borrow_mut();
        let done = queue.iter().filter(|r| r.due <= now).count();
        if done == 0 {
            return None;
        }
        let which = self.rng.below(done);
        let at = queue
            .iter()
            .enumerate()
            .filter(|(_, r)| r.due <= now)
            .nth(which)
            .map(|(at, _)| at)?;
        let request = queue.remove(at);
        drop(queue);
        Some((
            request.ticket,
            self.complete(request.request, request.fails),
        ))
    }

    /// Waits for one request: virtual time passes until the first is due. `None` if none is under way.
    pub fn wait(&self) -> Option<Completion> {
        loop {
            if let Some(done) = self.poll() {
                return Some(done);
            }
            let due = self.queue.borrow().iter().map(|r| r.due).min()?;
            let now = self.machine.hooks().now();
            // A share of the way, so that others get on meanwhile; at the end of their work the rest.
            self.machine
                .hooks()
                .advance(Nanos((due.saturating_sub(now.0)).div_ceil(2)));
            self.machine.hooks().relax(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;

    fn machine() -> Machine<12, 4> {
        Machine::builder(Arch::X86_64 { levels: 4 })
            .memory(64)
            .build()
    }

    fn fill(device: &Device<'_, 12, 4>, pfn: Pfn, byte: u8) {
        device.load(pfn, &[byte; 4096]);
    }

    #[test]
    fn what_was_written_is_read_after_a_while_and_in_any_order() {
        let machine = machine();
        let device = Device::new(&machine, DeviceModel::flash(64), 5);
        let mut order = Vec::new();
        for block in 0..16 {
            let from = machine.nth_frame(block as usize);
            fill(&device, from, block as u8);
            device.submit(Request::Write { block, from }).unwrap();
        }
        let before = machine.hooks().now();
        while let Some((ticket, result)) = device.wait() {
            result.unwrap();
            order.push(ticket);
        }
        assert!(machine.hooks().now().since(before).0 >= 80_000);
        assert!(!order.is_sorted(), "some overtake others");
        let into = machine.nth_frame(20);
        for block in 0..17 {
            device.submit(Request::Read { block, into }).unwrap();
            device.wait().unwrap().1.unwrap();
            let expected = if block < 16 { block as u8 } else { 0 };
            let mut bytes = [0xff; 4096];
            device.store(into, &mut bytes);
            assert!(bytes.iter().all(|b| *b == expected));
        }
    }

    #[test]
    fn a_full_queue_bad_requests_and_failures_are_told() {
        let machine = machine();
        let model = DeviceModel {
            depth: 2,
            ..DeviceModel::disk(8)
        };
        let device = Device::new(&machine, model, 1);
        let frame = machine.nth_frame(0);
        let nowhere = Pfn(usize::MAX >> 12);
        let read = |block, into| Request::Read { block, into };
        assert_eq!(
            device.submit(read(8, frame)),
            Err(SubmitError::NoSuchBlock(8))
        );
        assert_eq!(
            device.submit(read(0, nowhere)),
            Err(SubmitError::NoSuchFrame(nowhere))
        );
        device.inject(Fault::Nth(2));
        device.submit(read(0, frame)).unwrap();
        device.submit(read(1, frame)).unwrap();
        assert_eq!(device.submit(read(2, frame)), Err(SubmitError::Full));
        let failed: Vec<bool> = core::iter::from_fn(|| device.wait())
            .map(|(_, result)| result.is_err())
            .collect();
        assert_eq!(failed.len(), 2);
        assert_eq!(failed.iter().filter(|f| **f).count(), 1);
    }

    #[test]
    fn latencies_have_the_mean_that_was_asked_for() {
        let machine = machine();
        let device = Device::new(&machine, DeviceModel::flash(1), 9);
        let mean = (0..20_000).map(|_| device.tail()).sum::<u64>() / 20_000;
        assert!((17_000..23_000).contains(&mean), "{mean}");
    }
}
