//! The metadata of one page frame: 64 bytes, one cache line.
//!
//! A head of eight bytes is this layer's and atomic: `state` says what the frame is now and is
//! written by the frame's owner only (P1); `place` says which node and zone it is in, is written
//! when the frame is added and then only under the zone's lock (P2). The other 56 bytes are the
//! owner's: the *view*.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use flagstone_types::{MigrateType, Nid, Order, Zone};

/// What a page frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PageKind {
    /// No memory here, or none added yet. Zeroed metadata says this.
    Absent = 0,
    /// The first frame of a free block in the buddy lists.
    Buddy = 1,
    /// The first frame of a free block in a per-CPU page list.
    PageList = 2,
    /// The first frame of a slab.
    Slab = 3,
    /// A frame of a block or run that is not its first.
    Tail = 4,
    /// The first frame of a large allocation.
    Large = 5,
    /// The first frame of a block or run that its owner has given no other kind.
    Allocated = 6,
    /// The first frame of a block that is taken out of use for a moment.
    Isolated = 7,
    /// A page table.
    Table = 8,
    /// Anonymous memory.
    Anon = 9,
    /// A page of a file.
    File = 10,
    /// Memory of a device.
    Device = 11,
    /// Movable by the driver that owns it.
    DriverMovable = 12,
    /// Never handed out.
    Reserved = 13,
}

impl PageKind {
    const ALL: [Self; 14] = [
        Self::Absent,
        Self::Buddy,
        Self::PageList,
        Self::Slab,
        Self::Tail,
        Self::Large,
        Self::Allocated,
        Self::Isolated,
        Self::Table,
        Self::Anon,
        Self::File,
        Self::Device,
        Self::DriverMovable,
        Self::Reserved,
    ];

    /// Whether a frame of this kind is the first of a block or run.
    #[must_use]
    pub const fn is_head(self) -> bool {
        !matches!(self, Self::Absent | Self::Tail)
    }

    /// Whether the frame is the first of a block or run that somebody outside this layer owns.
    #[must_use]
    pub const fn is_owned(self) -> bool {
        !matches!(
            self,
            Self::Absent
                | Self::Tail
                | Self::Buddy
                | Self::PageList
                | Self::Isolated
                | Self::Reserved
        )
    }
}

/// The metadata of a page frame.
#[repr(C, align(64))]
pub struct Page {
    state: AtomicU32,
    place: AtomicU32,
    view: UnsafeCell<[u64; 7]>,
}

const _: () = assert!(size_of::<Page>() == flagstone_host::META_BYTES);

// SAFETY: `state` and `place` are atomic; the view is reached through a raw pointer only, whose
// user must own the frame or hold a pin (P3).
unsafe impl Sync for Page {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Page {}

/// What the `state` of a frame says, decoded.
///
/// Bits 0–7 kind. For a tail, bit 31 says whether it is aligned (D1). If it is, bits 8–12 are the order of its compound, else bits 8–30 are
/// its distance in frames from the head if it was marked, else stale. For all other kinds: 8–12 order, 13–15 migrate type, 16… flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(u32);

impl State {
    /// The head of a run: its length is the last word of the view.
    pub(crate) const RUN: u32 = 1 << 16;
    /// In a page list and not handed out since it left the buddy lists: `Backing::take` is due.
    pub(crate) const FRESH: u32 = 1 << 17;
    /// The tails are marked.
    pub(crate) const COMPOUND: u32 = 1 << 18;
    /// The head of device memory: it never goes to the lists (D5).
    pub(crate) const DEVICE: u32 = 1 << 19;

    /// For a tail: it has no distance of its own, the head is found by alignment.
    const ALIGNED: u32 = 1 << 31;
    const MAX_DISTANCE: usize = (1 << 23) - 1;
    /// The largest order that a state can say.
    pub(crate) const MAX_ORDER: u32 = 31;

    pub(crate) const fn new(kind: PageKind, order: u32, migrate: MigrateType, flags: u32) -> Self {
        Self(kind as u32 | order << 8 | (migrate as u32) << 13 | flags)
    }

    pub(crate) const TAIL: Self = Self(PageKind::Tail as u32);

    /// A tail `distance` frames behind its head; unmarked if that is too far to be noted.
    pub(crate) const fn tail(distance: usize) -> Self {
        if distance > Self::MAX_DISTANCE {
            Self::TAIL
        } else {
            Self(PageKind::Tail as u32 | (distance as u32) << 8)
        }
    }

    /// A tail of an aligned compound of `order`, whichever tail it is (D1).
    pub(crate) const fn aligned_tail(order: u32) -> Self {
        Self(PageKind::Tail as u32 | order << 8 | Self::ALIGNED)
    }

    /// The order of the compound that an aligned tail is in; `None` for any other frame.
    pub(crate) const fn aligned_order(self) -> Option<u32> {
        if self.0 & 0xff == PageKind::Tail as u32 && self.0 & Self::ALIGNED != 0 {
            Some(self.0 >> 8 & 0x1f)
        } else {
            None
        }
    }

    #[inline]
    pub(crate) const fn kind(self) -> PageKind {
        let kind = (self.0 & 0xff) as usize;
        if kind < PageKind::ALL.len() {
            PageKind::ALL[kind]
        } else {
            PageKind::Reserved
        }
    }

    pub(crate) const fn order(self) -> u32 {
        if self.0 & 0xff == PageKind::Tail as u32 {
            0
        } else {
            self.0 >> 8 & 0x1f
        }
    }

    pub(crate) const fn distance(self) -> usize {
        ((self.0 & !Self::ALIGNED) >> 8) as usize
    }

    pub(crate) fn migrate(self) -> MigrateType {
        migrate_type(self.0 >> 13 & 7)
    }

    pub(crate) const fn has(self, flag: u32) -> bool {
        self.0 & flag != 0 && self.0 & 0xff != PageKind::Tail as u32
    }
}

/// The migrate type with this index; what is none counts as unmovable.
pub(crate) fn migrate_type(index: u32) -> MigrateType {
    MigrateType::ALL
        .get(index as usize)
        .copied()
        .unwrap_or(MigrateType::Unmovable)
}

/// Where a frame is: node, zone, and (meaningful for the first frame of a page block) the block's migrate type.
///
/// Bits 0–15 node, 16–18 zone, 20–22 migrate type, 31 known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

impl Place {
    const KNOWN: u32 = 1 << 31;

    pub(crate) const fn new(nid: Nid, zone: Zone, migrate: MigrateType) -> Self {
        Self(nid.0 as u32 | (zone as u32) << 16 | (migrate as u32) << 20 | Self::KNOWN)
    }

    pub(crate) const fn is_known(self) -> bool {
        self.0 & Self::KNOWN != 0
    }

    pub(crate) const fn nid(self) -> Nid {
        Nid((self.0 & 0xffff) as u16)
    }

    pub(crate) fn zone(self) -> Zone {
        Zone::ALL
            .get((self.0 >> 16 & 7) as usize)
            .copied()
            .unwrap_or(Zone::Device)
    }

    pub(crate) fn migrate(self) -> MigrateType {
        migrate_type(self.0 >> 20 & 7)
    }

    /// Whether both are in the same zone of the same node.
    pub(crate) const fn same_zone(self, other: Self) -> bool {
        const WHERE: u32 = 0x7_ffff | Place::KNOWN;
        self.0 & WHERE == other.0 & WHERE
    }
}

impl Page {
    /// What the frame is. Out of date at once unless the caller owns the frame.
    #[inline]
    #[must_use]
    pub fn kind(&self) -> PageKind {
        self.state().kind()
    }

    /// Changes the kind; what else is known of the frame stays. For the owner of the block, on its
    /// first frame: a tail stays as it is, because it may be a record that others share (D2).
    pub fn set_kind(&self, kind: PageKind) {
        let state = self.state.load(Ordering::Relaxed);
        let is_tail = state & 0xff == PageKind::Tail as u32;
        debug_assert!(!is_tail, "a tail has no kind of its own");
        if is_tail {
            return;
        }
        self.state
            .store(state & !0xff | kind as u32, Ordering::Release);
    }

    /// The order of the block that begins here (0 for a tail; for a run, of the smallest block that could hold it).
    #[must_use]
    pub fn order(&self) -> Order {
        Order::new(self.state().order()).unwrap_or_default()
    }

    /// The node that the frame is in.
    #[must_use]
    pub fn nid(&self) -> Nid {
        self.place().nid()
    }

    /// The zone that the frame is in.
    #[must_use]
    pub fn zone(&self) -> Zone {
        self.place().zone()
    }

    /// The list that the block comes from and goes back to.
    #[must_use]
    pub fn migrate_type(&self) -> MigrateType {
        self.state().migrate()
    }

    /// The owner's 56 bytes; 48 on the first frame of a run, whose last word is its length and this
    /// layer's. Dereferencing needs ownership of the frame, or a pin that checks the kind again.
    #[must_use]
    pub const fn view(&self) -> *mut [u64; 7] {
        self.view.get()
    }

    #[inline]
    pub(crate) fn state(&self) -> State {
        // The record may be mapped read only (D2), where an `acquire` load is not defined (V3 of the host's model).
        let state = self.state.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        State(state)
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state.0, Ordering::Release);
    }

    /// Makes an absent frame `state`; false if it was not absent.
    pub(crate) fn claim(&self, state: State) -> bool {
        self.state
            .compare_exchange(0, state.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Undoes [`Page::claim`].
    pub(crate) fn disclaim(&self) {
        self.state.store(0, Ordering::Release);
    }

    pub(crate) fn place(&self) -> Place {
        Place(self.place.load(Ordering::Relaxed))
    }

    pub(crate) fn set_place(&self, place: Place) {
        self.place.store(place.0, Ordering::Relaxed);
    }

    /// Word `index` of the view as an atomic.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < 7);
        // SAFETY: in bounds and aligned (`view` has seven words); this layer reads and writes views
        // atomically only (P4), and an owner's plain access can not overlap ours but for the read that P4 discards.
        unsafe { AtomicU64::from_ptr(self.view.get().cast::<u64>().add(index)) }
    }

    /// The length of the run that begins here, in frames.
    pub(crate) fn run_pages(&self) -> usize {
        self.word(6).load(Ordering::Relaxed) as usize
    }

    /// Makes the frame, which is the head of a block or run, the head of a run of `pages`. Kind and type stay.
    pub(crate) fn make_run(&self, pages: usize) {
        self.word(6).store(pages as u64, Ordering::Relaxed);
        let covering = pages.next_power_of_two().ilog2().min(State::MAX_ORDER);
        let old = self.state();
        self.set_state(State::new(old.kind(), covering, old.migrate(), State::RUN));
    }
}

impl core::fmt::Debug for Page {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Page")
            .field("kind", &self.kind())
            .field("order", &self.order().get())
            .field("nid", &self.nid().0)
            .field("zone", &self.zone())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_encoding() {
        for kind in PageKind::ALL {
            assert_eq!(State::new(kind, 0, MigrateType::Movable, 0).kind(), kind);
        }
    }

    #[test]
    fn state_fields_do_not_overlap() {
        let s = State::new(PageKind::Buddy, 17, MigrateType::Isolate, State::FRESH);
        assert_eq!(
            (s.kind(), s.order(), s.migrate()),
            (PageKind::Buddy, 17, MigrateType::Isolate)
        );
        assert!(s.has(State::FRESH) && !s.has(State::RUN) && !s.has(State::COMPOUND));
    }

    #[test]
    fn a_tail_has_no_order_and_no_flags_whatever_its_distance() {
        let t = State::tail(0x007f_ffff);
        assert_eq!(
            (t.kind(), t.order(), t.distance(), t.aligned_order()),
            (PageKind::Tail, 0, 0x007f_ffff, None)
        );
        assert!(!t.has(State::RUN) && !t.has(State::FRESH));
        assert_eq!(State::tail(1 << 23), State::TAIL);
    }

    #[test]
    fn an_aligned_tail_says_its_order_and_nothing_else() {
        for order in 0..=State::MAX_ORDER {
            let t = State::aligned_tail(order);
            assert_eq!((t.kind(), t.aligned_order()), (PageKind::Tail, Some(order)));
            assert!(t.order() == 0 && !t.has(State::COMPOUND) && !t.has(State::DEVICE));
        }
        let head = State::new(PageKind::Device, 31, MigrateType::Isolate, State::DEVICE);
        assert_eq!(head.aligned_order(), None);
        assert_eq!((head.order(), head.has(State::DEVICE)), (31, true));
    }

    #[test]
    fn places_compare_by_node_and_zone() {
        let a = Place::new(Nid(3), Zone::Movable, MigrateType::Movable);
        assert_eq!(
            (a.nid(), a.zone(), a.migrate()),
            (Nid(3), Zone::Movable, MigrateType::Movable)
        );
        assert!(a.same_zone(Place::new(Nid(3), Zone::Movable, MigrateType::Isolate)));
        assert!(!a.same_zone(Place::new(Nid(2), Zone::Movable, MigrateType::Movable)));
        assert!(!a.same_zone(Place(0)));
    }
}
