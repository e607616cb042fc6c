//! The list of mutants, `mutants/*.toml`, and how one copy of the sources holds all of them.
//!
//! Each edit of a mutant replaces a piece of text that is there exactly once (behind `after`, if that is given) by
//! `if ::flagstone_types::mutant(N) { into } else { find }`, so that a list that no longer fits the sources is an error which names the entry, and
//! one build serves every mutant.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// What is in a file of the list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    mutant: Vec<Mutant>,
}

/// What can find a mutant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// The suite on simulated machines, or tests on the seeded host.
    #[default]
    Suite,
    /// Nothing: what is left out makes no difference, for the reason that is given.
    Equivalent,
    /// Nothing on simulated machines, for the reason that is given: mostly that they are sequentially consistent, so that it is a model checker's.
    Unseen,
}

/// One change that makes the sources wrong.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    pub(crate) name: String,
    file: String,
    /// What is left out, in one line.
    pub(crate) what: String,
    /// The clause of a `MODEL.md` that it breaks.
    pub(crate) rule: String,
    #[serde(default)]
    pub(crate) kind: Kind,
    /// Why nothing finds it, for [`Kind::Equivalent`] and [`Kind::Unseen`].
    pub(crate) reason: Option<String>,
    /// Whether it is one of the few that every change is checked with.
    #[serde(default)]
    pub(crate) sample: bool,
    #[serde(default)]
    edit: Vec<Edit>,
    /// Runs of the suite (`CASE@ARCH/VARIANT*CPUS`), or tests (`test CRATE::BINARY::NAME`), in this order for each seed.
    pub(crate) runs: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Edit {
    /// Of another file than the mutant's.
    file: Option<String>,
    after: Option<String>,
    find: String,
    into: String,
    /// What stays where the mutant is another one, if that is not `find`: where the types would differ.
    keep: Option<String>,
}

/// A place in a file, and what takes it.
struct Patch {
    start: usize,
    end: usize,
    keep: String,
    /// Mutants at this place, and what each makes of it.
    arms: Vec<(usize, String)>,
}

/// Reads every file of the list; a mutant's number is its place, from 1.
///
/// # Errors
/// A file that is no list, two mutants of one name, one without runs or without a reason.
pub(crate) fn read(root: &Path) -> Result<Vec<Mutant>> {
    let mut mutants: Vec<Mutant> = Vec::new();
    for file in ["pgtable.toml", "slab.toml"] {
        let path = root.join("mutants").join(file);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        let list: File =
            toml::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
        mutants.extend(list.mutant);
    }
    check(&mutants)?;
    Ok(mutants)
}

/// That names are used once, and that each entry has what its kind needs.
///
/// # Errors
/// The first one of which that is not so.
pub(crate) fn check(mutants: &[Mutant]) -> Result<()> {
    for (n, mutant) in mutants.iter().enumerate() {
        let name = &mutant.name;
        ensure!(
            mutants[..n].iter().all(|other| other.name != *name),
            "two mutants are called {name}"
        );
        match mutant.kind {
            Kind::Suite => ensure!(!mutant.runs.is_empty(), "mutant {name} has no runs"),
            _ => ensure!(mutant.reason.is_some(), "mutant {name} has no reason"),
        }
    }
    Ok(())
}

/// That every text to be edited is where the list says.
///
/// # Errors
/// The first one that is not.
#[cfg(test)]
pub(crate) fn check_places(root: &Path, mutants: &[Mutant]) -> Result<()> {
    for mutant in mutants {
        for (file, edit) in mutant.edits() {
            let text = std::fs::read_to_string(root.join(file))?;
            edit.place(&text)
                .with_context(|| format!("{}: {file}", mutant.name))?;
        }
    }
    Ok(())
}

impl Mutant {
    fn edits(&self) -> impl Iterator<Item = (&str, &Edit)> {
        let file = |edit: &Edit| edit.file.is_none();
        self.edit.iter().map(move |edit| {
            let own = file(edit);
            let other = edit.file.as_deref();
            (
                if own {
                    &self.file
                } else {
                    other.unwrap_or_default()
                },
                edit,
            )
        })
    }
}

impl Edit {
    /// The text with the edit in it.
    ///
    /// # Errors
    /// If the text is not where it should be.
    pub(crate) fn applied(&self, text: &str) -> Result<String> {
        let (start, end) = self.place(text)?;
        Ok(format!("{}{}{}", &text[..start], self.into, &text[end..]))
    }

    /// Where the text is.
    fn place(&self, text: &str) -> Result<(usize, usize)> {
        let (from, rest) = match &self.after {
            None => {
                let count = text.matches(&self.find).count();
                ensure!(count == 1, "{:?} is there {count} times", self.find);
                (0, text)
            }
            Some(after) => {
                let count = text.matches(after).count();
                ensure!(count == 1, "{after:?} is there {count} times");
                let from = text.find(after).unwrap_or_default() + after.len();
                (from, &text[from..])
            }
        };
        let Some(at) = rest.find(&self.find) else {
            bail!("{:?} is not there", self.find);
        };
        Ok((from + at, from + at + self.find.len()))
    }
}

/// Whether a piece of text is a statement or several, not an expression.
fn is_statement(text: &str) -> bool {
    text.trim_end().ends_with([';', '}'])
}

impl Patch {
    fn text(&self) -> String {
        let mut text = String::new();
        for (number, into) in &self.arms {
            text += &format!("if ::flagstone_types::mutant({number}) {{ {into} }} else ");
        }
        text += &format!("{{ {} }}", self.keep);
        if is_statement(&self.keep) {
            text
        } else {
            format!("({text})")
        }
    }
}

/// Puts all mutants into the sources below `tree`.
///
/// # Errors
/// The first mutant whose text is not there exactly once, or overlaps another's.
pub(crate) fn apply(tree: &Path, mutants: &[Mutant]) -> Result<()> {
    let mut files: BTreeMap<&str, (String, Vec<Patch>)> = BTreeMap::new();
    for (n, mutant) in mutants.iter().enumerate() {
        for (file, edit) in mutant.edits() {
            let name = &mutant.name;
            if !files.contains_key(file) {
                let text = std::fs::read_to_string(tree.join(file))
                    .with_context(|| format!("mutant {name}: reading {file}"))?;
                files.insert(file, (text, Vec::new()));
            }
            let Some((text, patches)) = files.get_mut(file) else {
                continue;
            };
            let (start, end) = edit
                .place(text)
                .with_context(|| format!("mutant {name}, in {file}"))?;
            let keep = edit.keep.clone().unwrap_or_else(|| edit.find.clone());
            let arm = (n + 1, edit.into.clone());
            if let Some(same) = patches
                .iter_mut()
                .find(|p| (p.start, p.end) == (start, end))
            {
                ensure!(same.keep == keep, "mutant {name} keeps something else");
                same.arms.push(arm);
                continue;
            }
            if patches.iter().any(|p| p.start < end && start < p.end) {
                bail!("mutant {name} overlaps another one in {file}");
            }
            let arms = vec![arm];
            patches.push(Patch {
                start,
                end,
                keep,
                arms,
            });
        }
    }
    for (file, (mut text, mut patches)) in files {
        patches.sort_by_key(|patch| core::cmp::Reverse(patch.start));
        for patch in patches {
            text.replace_range(patch.start..patch.end, &patch.text());
        }
        std::fs::write(tree.join(file), text).with_context(|| format!("writing {file}"))?;
    }
    Ok(())
}

/// Formats as runs name them, and as the suite's source does.
const FORMATS: [(&str, &str); 10] = [
    ("x86_64", "X86_64"),
    ("x86_64-la57", "X86_64La57"),
    ("x86-pae", "X86Pae"),
    ("arm64-4k", "Arm64K4"),
    ("arm64-16k", "Arm64K16"),
    ("arm64-64k", "Arm64K64"),
    ("ppc64-4k", "Ppc64K4"),
    ("ppc64-64k", "Ppc64K64"),
    ("riscv64-sv39", "Riscv64Sv39"),
    ("riscv64-sv48", "Riscv64Sv48"),
];

/// Leaves formats out of the copy's suite that no run names: each is compiled by itself, with everything.
///
/// # Errors
/// A suite that names its formats otherwise.
pub(crate) fn keep_formats(tree: &Path, runs: &[&str]) -> Result<()> {
    let of = |run: &str| {
        let (_, machine) = run.split_once('@')?;
        machine.split(['/', '*']).next().map(str::to_owned)
    };
    let wanted: Vec<String> = runs.iter().filter_map(|run| of(run)).collect();
    if wanted.iter().any(|name| name == "any") {
        return Ok(());
    }
    let path = tree.join("crates/conformance/src/sim.rs");
    let mut text = std::fs::read_to_string(&path).context("reading the suite")?;
    for (_, source) in FORMATS
        .iter()
        .filter(|(name, _)| wanted.iter().all(|w| w != name))
    {
        let arm = format!("Arch::{source} => on_machine");
        let at = text
            .find(&arm)
            .with_context(|| format!("no {arm} in the suite"))?;
        let end = text[at..].find('\n').unwrap_or(text.len() - at);
        text.replace_range(at..at + end, &format!("Arch::{source} => unreachable!(),"));
    }
    std::fs::write(&path, text).context("writing the suite")
}

/// The function that tells mutants apart, at the end of the copy's `flagstone-types`: the environment says which one is asked for, none by default.
pub(crate) const SWITCH: &str = "
extern crate std;
extern crate self as flagstone_types;

/// Whether the program is this mutant.
#[inline]
pub fn mutant(number: u32) -> bool {
    use core::sync::atomic::{AtomicU32, Ordering};
    static ASKED: AtomicU32 = AtomicU32::new(u32::MAX);
    let mut asked = ASKED.load(Ordering::Relaxed);
    if asked == u32::MAX {
        let variable = std::env::var(\"FLAGSTONE_MUTANT\").ok();
        asked = variable.and_then(|text| text.parse().ok()).unwrap_or(0);
        ASKED.store(asked, Ordering::Relaxed);
    }
    asked == number
}
";

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(after: Option<&str>, find: &str) -> Edit {
        Edit {
            file: None,
            after: after.map(Into::into),
            find: find.into(),
            into: "()".into(),
            keep: None,
        }
    }

    #[test]
    fn a_text_is_found_once_or_behind_something_that_is_there_once() {
        let text = "fn a { x } fn b { x }";
        assert!(edit(None, "x").place(text).is_err());
        assert!(edit(None, "y").place(text).is_err());
        assert_eq!(edit(Some("fn b"), "x").place(text).unwrap(), (18, 19));
        assert!(edit(Some("fn"), "x").place(text).is_err());
    }

    #[test]
    fn the_list_fits_the_sources() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap();
        let mutants = read(root).unwrap();
        check_places(root, &mutants).unwrap();
        let suite = mutants.iter().filter(|m| m.kind == Kind::Suite).count();
        assert!(suite >= 40, "{suite} mutants");
    }
}
