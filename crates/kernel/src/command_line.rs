//! What the loader was told to say: words separated by spaces, of which those that are known have the form `name=value`.
//!
//! | word | meaning | without it |
//! | --- | --- | --- |
//! | `levels=5` | tables of five levels, where the CPU has them (read by `asm/start.s` too) | four |
//! | `nodes=N` | memory is cut into so many nodes, at most 8 | one |
//! | `seed=N` | random numbers follow from this one, so that places are the same each time | from the hardware |
//! | `cases=A,B` | of the trial `conformance` only these cases run | all of them |
//! | `trials=A,B` | only these trials run | all but `costs` and `bad_access` |

use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// Bytes that are kept.
const MOST: usize = 256;

/// The line, once it was kept; constant from then on.
static LINE: [AtomicU8; MOST] = [const { AtomicU8::new(0) }; MOST];
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Keeps the line, as much of it as there is room for. Called once by the first CPU.
pub(crate) fn keep(line: &[u8]) {
    for (to, &byte) in LINE.iter().zip(line) {
        to.store(byte, Ordering::Relaxed);
    }
    LENGTH.store(line.len().min(MOST), Ordering::Release);
}

/// Calls `f` with the line.
fn with<R>(f: impl FnOnce(&[u8]) -> R) -> R {
    let bytes: [u8; MOST] = core::array::from_fn(|n| LINE[n].load(Ordering::Relaxed));
    f(&bytes[..LENGTH.load(Ordering::Acquire)])
}

/// The values of the words `name=value`.
fn values<'a>(line: &'a [u8], name: &'a str) -> impl DoubleEndedIterator<Item = &'a [u8]> {
    line.split(u8::is_ascii_whitespace)
        .filter_map(move |word| word.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

fn number_in(line: &[u8], name: &str) -> Option<u64> {
    values(line, name)
        .filter_map(|value| core::str::from_utf8(value).ok()?.parse().ok())
        .next_back()
}

fn chooses_in(line: &[u8], name: &str, choice: &str) -> Option<bool> {
    let list = values(line, name).next_back()?;
    let mut choices = list.split(|&byte| byte == b',');
    Some(choices.any(|one| one == choice.as_bytes()))
}

/// The number that the last word `name=number` says.
pub(crate) fn number(name: &str) -> Option<u64> {
    with(|line| number_in(line, name))
}

/// Whether `choice` is in the list of the last word `name=list`; `None` if there is no such word.
pub(crate) fn chooses(name: &str, choice: &str) -> Option<bool> {
    with(|line| chooses_in(line, name, choice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_of_a_name_that_says_a_number_counts() {
        assert_eq!(number_in(b"", "nodes"), None);
        assert_eq!(number_in(b"quiet nodes=2 debug", "nodes"), Some(2));
        assert_eq!(number_in(b"nodes=3 nodes=4", "nodes"), Some(4));
        assert_eq!(
            number_in(b"nodes=many xnodes=5 nodes= nodes", "nodes"),
            None
        );
    }

    #[test]
    fn a_list_chooses_what_is_in_it() {
        let line = b"nodes=2 trials=unit,grace";
        assert_eq!(chooses_in(line, "trials", "grace"), Some(true));
        assert_eq!(chooses_in(line, "trials", "uni"), Some(false));
        assert_eq!(chooses_in(b"trials", "trials", "unit"), None);
    }

    #[test]
    fn a_line_that_is_too_long_is_cut() {
        keep(&[b'x'; 300]);
        assert_eq!(with(<[u8]>::len), MOST);
    }
}
