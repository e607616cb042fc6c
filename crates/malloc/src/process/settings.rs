//! Settings: the `FLAGSTONE_*` variables of the environment.
//!
//! Parsed without allocation from whatever strings the environment has. A variable of that prefix which is unknown or
//! malformed is reported by name and changes nothing.

use core::fmt;

use flagstone_types::{Bytes, Nanos};

use crate::guard::{GuardParams, MOST_OBJECTS};
use crate::harden::Features;

/// How per-CPU arrays are made indivisible, as asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArrayChoice {
    /// The best that the system has.
    #[default]
    Auto,
    /// Restartable sequences, arrays by CPU number.
    Cpu,
    /// Restartable sequences, arrays by concurrency id.
    Concurrency,
    /// An exchange lock per array.
    Exchange,
}

/// How reports of bugs are written to the folder `FLAGSTONE_REPORTS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReportFormat {
    /// For people.
    #[default]
    Text,
    /// A line of JSON each.
    Json,
    /// Each in its file.
    Both,
}

/// The longest value of `FLAGSTONE_STATS` in bytes.
pub const LONGEST_STATS: usize = 1024;

/// All settings.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Nodes to pretend, 1 to 64 (`FLAGSTONE_FAKE_NODES`); `None` for those of the machine.
    pub fake_nodes: Option<u32>,
    /// The form of per-CPU arrays (`FLAGSTONE_ARRAY=auto|rseq|cid|exchange`).
    pub array: ArrayChoice,
    /// How many bytes of free memory to keep (`FLAGSTONE_RETAIN`, with K, M or G).
    pub retain: Option<Bytes>,
    /// Whether to say at start which mode is in use (`FLAGSTONE_VERBOSE=1`).
    pub verbose: bool,
    /// Sampled guard pages (`FLAGSTONE_GUARD=1` or `interval=MS,objects=N`); `None` for none.
    pub guard: Option<GuardParams>,
    /// How reports are written (`FLAGSTONE_REPORT_FORMAT=text|json|both`).
    pub report_format: ReportFormat,
    reports: [u8; LONGEST_STATS],
    reports_length: Option<u16>,
    /// Hardening (`FLAGSTONE_HARDEN=1` or names).
    pub harden: Features,
    stats: [u8; LONGEST_STATS],
    stats_length: Option<u16>,
    live: [u8; LONGEST_STATS],
    live_length: Option<u16>,
    inject: [u8; LONGEST_STATS],
    inject_length: Option<u16>,
    debug: [u8; LONGEST_STATS],
    debug_length: Option<u16>,
    numa: [u8; LONGEST_STATS],
    numa_length: Option<u16>,
}

impl Settings {
    /// What holds if no variable is set.
    pub const DEFAULT: Self = Self {
        fake_nodes: None,
        array: ArrayChoice::Auto,
        retain: None,
        verbose: false,
        guard: None,
        report_format: ReportFormat::Text,
        reports: [0; LONGEST_STATS],
        reports_length: None,
        harden: Features::NONE,
        stats: [0; LONGEST_STATS],
        stats_length: None,
        live: [0; LONGEST_STATS],
        live_length: None,
        inject: [0; LONGEST_STATS],
        inject_length: None,
        debug: [0; LONGEST_STATS],
        debug_length: None,
        numa: [0; LONGEST_STATS],
        numa_length: None,
    };

    /// Where statistics are wanted (`FLAGSTONE_STATS`), as given; `None` if nowhere.
    #[must_use]
    pub fn stats(&self) -> Option<&[u8]> {
        self.stats_length.map(|n| &self.stats[..n as usize])
    }

    /// The folder that reports of bugs go to (`FLAGSTONE_REPORTS`), as given; `None` for standard error.
    #[must_use]
    pub fn reports(&self) -> Option<&[u8]> {
        self.reports_length
            .map(|n| &self.reports[..n as usize])
            .filter(|folder| !folder.is_empty())
    }

    /// The directory for live statistics (`FLAGSTONE_LIVE`), as given; `None` if they are not wanted.
    #[must_use]
    pub fn live(&self) -> Option<&[u8]> {
        self.live_length.map(|n| &self.live[..n as usize])
    }

    /// Which caches are debugged, and how (`FLAGSTONE_DEBUG`), as given; `None` if none is.
    #[must_use]
    pub fn debug(&self) -> Option<&[u8]> {
        self.debug_length.map(|n| &self.debug[..n as usize])
    }

    /// What is to fail on purpose (`FLAGSTONE_INJECT`), as given.
    #[must_use]
    pub fn inject(&self) -> Option<&[u8]> {
        self.inject_length.map(|n| &self.inject[..n as usize])
    }

    /// The policy of placement (`FLAGSTONE_NUMA`), as given.
    #[must_use]
    pub fn numa(&self) -> Option<&[u8]> {
        self.numa_length.map(|n| &self.numa[..n as usize])
    }

    /// Reads the settings among `environment`, strings of the form `NAME=value`. `report` is
    /// told of each that is unknown or malformed.
    pub fn parse<'a>(
        environment: impl Iterator<Item = &'a [u8]>,
        report: &mut dyn FnMut(fmt::Arguments<'_>),
    ) -> Self {
        let mut settings = Self::DEFAULT;
        for string in environment {
            let Some(rest) = string.strip_prefix(b"FLAGSTONE_") else {
                continue;
            };
            let end = rest.iter().position(|b| *b == b'=').unwrap_or(rest.len());
            let (name, value) = (&rest[..end], rest.get(end + 1..).unwrap_or_default());
            match settings.set(name, value) {
                Ok(()) => {}
                Err(Refused::Unknown) => {
                    report(format_args!(
                        "setting FLAGSTONE_{} is unknown, ignored",
                        Text(name)
                    ));
                }
                Err(Refused::Malformed(wanted)) => report(format_args!(
                    "setting FLAGSTONE_{}={} is not {wanted}, ignored",
                    Text(name),
                    Text(value)
                )),
            }
        }
        settings
    }

    fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), Refused> {
        match name {
            b"FAKE_NODES" => match decimal(value) {
                Some(n @ 1..=64) => self.fake_nodes = Some(n as u32),
                _ => return Err(Refused::Malformed("a number from 1 to 64")),
            },
            b"ARRAY" => {
                self.array = match value {
                    b"auto" => ArrayChoice::Auto,
                    b"rseq" => ArrayChoice::Cpu,
                    b"cid" => ArrayChoice::Concurrency,
                    b"exchange" => ArrayChoice::Exchange,
                    _ => return Err(Refused::Malformed("one of auto, rseq, cid, exchange")),
                }
            }
            b"RETAIN" => match size(value) {
                Some(bytes) => self.retain = Some(bytes),
                None => {
                    return Err(Refused::Malformed(
                        "a number of bytes (K, M and G may follow)",
                    ));
                }
            },
            b"VERBOSE" => match value {
                b"0" => self.verbose = false,
                b"1" => self.verbose = true,
                _ => return Err(Refused::Malformed("0 or 1")),
            },
            b"GUARD" => match guard(value) {
                Some(guard) => self.guard = guard,
                None => {
                    return Err(Refused::Malformed(
                        "0, 1, or a list of interval=MS and objects=1..65535",
                    ));
                }
            },
            b"HARDEN" => match Features::parse(value) {
                Some(features) => self.harden = features,
                None => {
                    return Err(Refused::Malformed(
                        "0, 1, or a list of random, guards, zero_free, zero_alloc, check_free, canary, encode and usercopy",
                    ));
                }
            },
            b"STATS" => keep(value, &mut self.stats, &mut self.stats_length)?,
            b"REPORTS" => keep(value, &mut self.reports, &mut self.reports_length)?,
            b"REPORT_FORMAT" => {
                self.report_format = match value {
                    b"text" => ReportFormat::Text,
                    b"json" => ReportFormat::Json,
                    b"both" => ReportFormat::Both,
                    _ => return Err(Refused::Malformed("one of text, json, both")),
                }
            }
            b"LIVE" => keep(value, &mut self.live, &mut self.live_length)?,
            b"DEBUG" => keep(value, &mut self.debug, &mut self.debug_length)?,
            b"INJECT" => keep(value, &mut self.inject, &mut self.inject_length)?,
            b"NUMA" => keep(value, &mut self.numa, &mut self.numa_length)?,
            // Of the tests, which run programs under the library.
            b"SEED" | b"SEEDS" | b"PRELOAD" => {}
            _ => return Err(Refused::Unknown),
        }
        Ok(())
    }
}

fn keep(value: &[u8], into: &mut [u8], length: &mut Option<u16>) -> Result<(), Refused> {
    let Some(room) = into.get_mut(..value.len()) else {
        return Err(Refused::Malformed("at most 1024 bytes long"));
    };
    room.copy_from_slice(value);
    *length = Some(value.len() as u16);
    Ok(())
}

enum Refused {
    Unknown,
    Malformed(&'static str),
}

/// A decimal number without sign, of at least one digit.
fn decimal(text: &[u8]) -> Option<usize> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0usize, |n, b| {
        let digit = b.is_ascii_digit().then(|| (b - b'0') as usize)?;
        n.checked_mul(10)?.checked_add(digit)
    })
}

/// The value of `FLAGSTONE_GUARD`.
fn guard(text: &[u8]) -> Option<Option<GuardParams>> {
    match text {
        b"0" | b"" => return Some(None),
        b"1" => return Some(Some(GuardParams::DEFAULT)),
        _ => {}
    }
    let mut params = GuardParams::DEFAULT;
    for item in text.split(|b| *b == b',') {
        if let Some(value) = item.strip_prefix(b"interval=") {
            let ms = decimal(value).filter(|ms| *ms <= 86_400_000)?;
            params.interval = Nanos(ms as u64 * 1_000_000);
        } else if let Some(value) = item.strip_prefix(b"objects=") {
            params.objects =
                decimal(value).filter(|n| (1..=MOST_OBJECTS as usize).contains(n))? as u32;
        } else {
            return None;
        }
    }
    Some(Some(params))
}

fn size(text: &[u8]) -> Option<Bytes> {
    let (digits, shift) = match text.split_last()? {
        (b'K' | b'k', digits) => (digits, 10),
        (b'M' | b'm', digits) => (digits, 20),
        (b'G' | b'g', digits) => (digits, 30),
        _ => (text, 0),
    };
    decimal(digits)?.checked_mul(1 << shift).map(Bytes)
}

/// Bytes of the environment for a message: what is not printable ASCII becomes a question mark.
struct Text<'a>(&'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        self.0.iter().take(80).try_for_each(|b| {
            f.write_char(if b.is_ascii_graphic() || *b == b' ' {
                *b as char
            } else {
                '?'
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::{String, ToString as _};
    use std::vec::Vec;

    fn parse(environment: &[&str]) -> (Settings, Vec<String>) {
        let mut reports = Vec::new();
        let settings = Settings::parse(environment.iter().map(|s| s.as_bytes()), &mut |message| {
            reports.push(message.to_string());
        });
        (settings, reports)
    }

    #[test]
    fn every_setting_is_read() {
        let (settings, reports) = parse(&[
            "HOME=/",
            "FLAGSTONE_FAKE_NODES=4",
            "FLAGSTONE_ARRAY=cid",
            "FLAGSTONE_RETAIN=64M",
            "FLAGSTONE_VERBOSE=1",
            "FLAGSTONE_STATS=/tmp/a b",
        ]);
        assert_eq!(reports, [""; 0]);
        assert_eq!(settings.fake_nodes, Some(4));
        assert_eq!(settings.array, ArrayChoice::Concurrency);
        assert_eq!(settings.retain, Some(Bytes(64 << 20)));
        assert!(settings.verbose);
        assert_eq!(settings.stats(), Some(&b"/tmp/a b"[..]));
    }

    #[test]
    fn unknown_and_malformed_settings_are_named_and_ignored() {
        let (settings, reports) = parse(&[
            "FLAGSTONE_FOO=1",
            "FLAGSTONE_BAR",
            "FLAGSTONE_FAKE_NODES=65",
            "FLAGSTONE_FAKE_NODES=",
            "FLAGSTONE_ARRAY=Rseq",
            "FLAGSTONE_RETAIN=12Q\u{7}",
            "FLAGSTONE_RETAIN=99999999999999999999",
            "FLAGSTONE_RETAIN=99999999999999G",
            "FLAGSTONE_VERBOSE=yes",
        ]);
        assert_eq!(reports.len(), 9);
        assert_eq!(reports[0], "setting FLAGSTONE_FOO is unknown, ignored");
        assert_eq!(reports[1], "setting FLAGSTONE_BAR is unknown, ignored");
        assert_eq!(
            reports[2],
            "setting FLAGSTONE_FAKE_NODES=65 is not a number from 1 to 64, ignored"
        );
        assert!(
            reports[5].contains("FLAGSTONE_RETAIN=12Q? is not"),
            "{}",
            reports[5]
        );
        assert!(settings.fake_nodes.is_none() && settings.retain.is_none() && !settings.verbose);
        assert_eq!(settings.array, ArrayChoice::Auto);
    }

    #[test]
    fn stats_too_long_to_keep_are_refused() {
        let long = std::format!("FLAGSTONE_STATS={}", "x".repeat(LONGEST_STATS + 1));
        let (settings, reports) = parse(&[&long]);
        assert_eq!(reports.len(), 1);
        assert!(settings.stats().is_none());
        assert_eq!(parse(&["FLAGSTONE_STATS="]).0.stats(), Some(&b""[..]));
    }
}
