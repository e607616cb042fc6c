//! The books of memory: which pieces were mapped, which of their pages are in tables, whether what was stored was noted.
//!
//! Room for all pieces of a case is made when the ledger is: closures that the library calls with locks held write here.

use crate::findings::Findings;
use crate::platform::{Platform, RETURN};
use crate::spin::Spin;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use flagstone_pgtable::format::{Entry, Format, Level, Marks};
use flagstone_pgtable::{Owner, Taken};
use flagstone_types::{Bytes, PhysAddr};

/// Most pages that are counted one by one; a larger piece is counted in sum.
const SINGLE: u64 = 1 << 14;

/// Words that a page had when it was cleaned; what does not fit is not asked for.
const CLEANED: usize = 6;

/// A piece by its number.
pub(crate) type PieceId = usize;

/// What is known of the contents of a piece of one page (L3).
#[derive(Debug, Default)]
struct Notes {
    cleaned: [u64; CLEANED],
    count: usize,
    /// Contexts that are cleaning it.
    cleaning: u32,
}

#[derive(Debug)]
struct Piece {
    at: u64,
    bytes: u64,
    level: Level,
    out: u64,
    /// Which pages are out, one bit each; empty for a large piece.
    pages: Box<[u64]>,
    notes: Notes,
    /// When it was given back; `None`: not yet.
    ended: Option<u64>,
}

#[derive(Debug)]
struct Books {
    pieces: Vec<Piece>,
    clock: u64,
}

/// The ledger.
#[derive(Debug)]
pub(crate) struct Ledger {
    books: Spin<Books>,
    page: u64,
    /// Whether stores must be noted (L3).
    asks: bool,
}

/// What the first word of a page of a piece is.
pub(crate) fn tag(piece: PieceId) -> u64 {
    (piece as u64 + 1) << 8 | u64::from(RETURN)
}

/// The piece that a first word names.
fn piece_of(word: u64) -> Option<PieceId> {
    (word as u8 == RETURN && word >> 8 != 0).then(|| (word >> 8) as usize - 1)
}

impl Books {
    /// The piece in use that has an address.
    fn find(&self, at: u64) -> Option<PieceId> {
        self.pieces
            .iter()
            .rposition(|piece| piece.ended.is_none() && at.wrapping_sub(piece.at) < piece.bytes)
    }
}

impl Ledger {
    /// With room for so many pieces, for pages of `page` bytes.
    pub(crate) fn new(room: usize, page: u64) -> Self {
        let books = Books {
            pieces: Vec::with_capacity(room),
            clock: 0,
        };
        Self {
            books: Spin::new(books),
            page,
            asks: true,
        }
    }

    /// From now on nobody asks whether stores were noted.
    pub(crate) fn ask_nothing(&mut self) {
        self.asks = false;
    }

    /// Writes a new piece of memory down, and its tags into its pages if they are few.
    pub(crate) fn enter<P: Platform>(&self, p: &P, at: PhysAddr, level: Level) -> Option<PieceId> {
        let bytes = 1u64 << P::Format::shift(level);
        let pages = bytes / self.page;
        let map = if pages <= SINGLE {
            vec![0; pages.div_ceil(64) as usize].into_boxed_slice()
        } else {
            Box::default()
        };
        let piece = Piece {
            at: at.0,
            bytes,
            level,
            out: 0,
            pages: map,
            notes: Notes::default(),
            ended: None,
        };
        let id = {
            let mut books = self.books.lock();
            if books.pieces.len() == books.pieces.capacity() {
                return None;
            }
            books.pieces.push(piece);
            books.pieces.len() - 1
        };
        for n in 0..pages.min(SINGLE) {
            let page = at.0 + n * self.page;
            let Some(first) = p.word(PhysAddr(page)) else {
                break;
            };
            first.store(tag(id), Ordering::Relaxed);
            if let Some(second) = p.word(PhysAddr(page + 8)) {
                second.store(0, Ordering::Relaxed);
            }
        }
        Some(id)
    }

    /// Says that pages of a piece may be in a table from now on (L1).
    pub(crate) fn put_out(&self, piece: PieceId, first: u64, count: u64) -> Result<(), String> {
        let mut books = self.books.lock();
        let piece = &mut books.pieces[piece];
        for n in first..first + count {
            let Some(word) = piece.pages.get_mut(n as usize / 64) else {
                break;
            };
            if *word >> (n % 64) & 1 != 0 {
                return Err(format!("page {n} of {:#x} is mapped twice", piece.at));
            }
            *word |= 1 << (n % 64);
        }
        piece.out += count;
        Ok(())
    }

    /// Says that pages are in no table; gives the level of the piece if it was the last of it.
    pub(crate) fn take_back(&self, at: u64, count: u64) -> Result<Vec<(u64, Level)>, String> {
        let mut ended = Vec::new();
        let (mut at, mut left) = (at, count);
        while left != 0 {
            let mut books = self.books.lock();
            let id = books
                .find(at)
                .ok_or_else(|| format!("{at:#x} was released and is nobody's"))?;
            let clock = books.clock;
            let piece = &mut books.pieces[id];
            let first = (at - piece.at) / self.page;
            let here = left.min((piece.at + piece.bytes - at) / self.page);
            for n in first..first + here {
                let Some(word) = piece.pages.get_mut(n as usize / 64) else {
                    break;
                };
                if *word >> (n % 64) & 1 == 0 {
                    let page = piece.at + n * self.page;
                    return Err(format!("{page:#x} was released and was not mapped"));
                }
                *word &= !(1 << (n % 64));
            }
            piece.out = piece
                .out
                .checked_sub(here)
                .ok_or_else(|| format!("more of {:#x} was released than mapped", piece.at))?;
            let end = (piece.out == 0).then_some((piece.at, piece.level));
            if end.is_some() {
                piece.ended = Some(clock + 1);
                books.clock = clock + 1;
            }
            drop(books);
            ended.extend(end);
            at += here * self.page;
            left -= here;
        }
        Ok(ended)
    }

    /// A moment, for [`Ledger::check_seen`].
    pub(crate) fn now(&self) -> u64 {
        self.books.lock().clock
    }

    /// That an address or a first word is of a piece that was in use at some moment since `since` (T4).
    pub(crate) fn check_seen(
        &self,
        at: Option<PhysAddr>,
        word: Option<u64>,
        since: u64,
    ) -> Result<(), String> {
        let books = self.books.lock();
        let alive = |piece: &Piece| piece.ended.is_none_or(|ended| ended > since);
        if let Some(word) = word {
            let piece = piece_of(word).and_then(|id| books.pieces.get(id));
            if !piece.is_some_and(alive) {
                return Err(format!(
                    "a load saw {word:#x}, which is in no page that is mapped"
                ));
            }
        }
        if let Some(at) = at {
            let known = |piece: &Piece| alive(piece) && at.0.wrapping_sub(piece.at) < piece.bytes;
            if !books.pieces.iter().rev().any(known) {
                return Err(format!("an access led to {:#x}, which is not mapped", at.0));
            }
        }
        Ok(())
    }

    /// That an address is of a piece that there ever was: what a reader without locks may see.
    pub(crate) fn was_mapped(&self, at: u64) -> bool {
        let books = self.books.lock();
        let mut pieces = books.pieces.iter().rev();
        pieces.any(|piece| at.wrapping_sub(piece.at) < piece.bytes)
    }

    /// Says that the dirty mark of a page is about to be cleared. The number is for [`Ledger::cleaned`].
    pub(crate) fn cleaning(&self, at: u64) -> Option<PieceId> {
        let mut books = self.books.lock();
        let id = books.find(at)?;
        books.pieces[id].notes.cleaning += 1;
        Some(id)
    }

    /// Says that a page was cleaned and invalidated; `word` is its second word after that, if there is one.
    pub(crate) fn cleaned(&self, piece: PieceId, word: impl FnOnce(u64) -> Option<u64>) {
        let (at, single) = {
            let books = self.books.lock();
            let piece = &books.pieces[piece];
            (piece.at, piece.bytes == self.page && piece.ended.is_none())
        };
        let word = if single { word(at + 8) } else { None };
        let mut books = self.books.lock();
        let notes = &mut books.pieces[piece].notes;
        notes.cleaning -= 1;
        match (word, notes.count < CLEANED) {
            (Some(word), true) => {
                notes.cleaned[notes.count] = word;
                notes.count += 1;
            }
            (Some(_), false) => notes.cleaning += 1,
            (None, _) => {}
        }
    }

    /// Says that the second word of a page was written by other means than a store through the unit, before the page was out.
    pub(crate) fn begin_with(&self, piece: PieceId, word: u64) {
        let mut books = self.books.lock();
        let notes = &mut books.pieces[piece].notes;
        if notes.count < CLEANED {
            notes.cleaned[notes.count] = word;
            notes.count += 1;
        }
    }

    /// That stores to a page were noted (L3). It came back with this second word.
    fn check_noted(&self, at: u64, word: u64, dirty: bool) -> Result<(), String> {
        if dirty || word == 0 || !self.asks {
            return Ok(());
        }
        let books = self.books.lock();
        let Some(piece) = books.find(at).map(|id| &books.pieces[id]) else {
            return Ok(());
        };
        let notes = &piece.notes;
        if piece.bytes != self.page || notes.cleaning != 0 {
            return Ok(());
        }
        if !notes.cleaned[..notes.count].contains(&word) {
            return Err(format!(
                "the page at {at:#x} has {word:#x} stored in it and came back as not dirty"
            ));
        }
        Ok(())
    }

    /// Pages that are in a table, by the books.
    pub(crate) fn pages_out(&self) -> u64 {
        self.books.lock().pieces.iter().map(|piece| piece.out).sum()
    }

    /// Takes memory that a run of leaves mapped back from a page table.
    pub(crate) fn release<P: Platform>(&self, p: &P, taken: &Taken) -> Result<(), String> {
        let Entry::Leaf(leaf) = taken.entry else {
            return Ok(());
        };
        let bytes = taken.pages as u64 * (1 << P::Format::shift(taken.level));
        if taken.level == Level::PTE {
            for n in 0..taken.pages.min(16) as u64 {
                let at = leaf.at.0 + n * self.page;
                if let Some(second) = p.word(PhysAddr(at + 8)) {
                    let dirty = leaf.marks().contains(Marks::DIRTY);
                    self.check_noted(at, second.load(Ordering::Relaxed), dirty)?;
                }
            }
        }
        p.released(leaf.at, Bytes(bytes as usize));
        for (at, level) in self.take_back(leaf.at.0, bytes / self.page)? {
            self.give(p, at, level);
        }
        Ok(())
    }

    /// Gives a piece back to the platform, without its tags.
    pub(crate) fn give<P: Platform>(&self, p: &P, at: u64, level: Level) {
        let pages = (1u64 << P::Format::shift(level)) / self.page;
        for n in 0..pages.min(SINGLE) {
            let Some(first) = p.word(PhysAddr(at + n * self.page)) else {
                break;
            };
            first.store(u64::from(RETURN), Ordering::Relaxed);
        }
        p.free(PhysAddr(at), level);
    }
}

/// The owner of everything that a case maps.
#[derive(Debug)]
pub(crate) struct Releasing<'s, P: Platform> {
    pub(crate) ledger: &'s Ledger,
    pub(crate) platform: &'s P,
    pub(crate) findings: &'s Findings,
    /// Counts the absent entries that come back.
    pub(crate) absent: &'s AtomicU64,
}

// SAFETY: O1 of pgtable's model: L1: a page that comes back was put out before it was mapped, and its memory is given back once.
unsafe impl<P: Platform> Owner for Releasing<'_, P> {
    fn release(&mut self, taken: Taken) {
        if let Entry::Absent(_) = taken.entry {
            self.absent.fetch_add(taken.pages as u64, Ordering::Relaxed);
        }
        if let Err(text) = self.ledger.release(self.platform, &taken) {
            self.findings.add(format!("{text} ({taken:?})"));
        }
    }
}
