//! `include/flagstone.h`: the object caches for C and C++, made from the Rust functions and their documentation.

use anyhow::{Context, Result, anyhow, bail};
use cbindgen::{Builder, Config, DocumentationStyle, Language, Style};
use similar::TextDiff;
use std::path::Path;

/// The file, from the root of the repository.
const FILE: &str = "include/flagstone.h";

/// Where the functions are.
const SOURCE: &str = "crates/preload/src/caches.rs";

const PREFACE: &str = "\
/* Flagstone: object caches for C and C++.
 *
 * A cache hands out objects of one size. Its allocation and free take no lock, and an object may be freed by any
 * thread. Link libflagstone_preload.a (which makes malloc Flagstone's as well) or -lflagstone_preload; see
 * docs/malloc.md. `cargo xtask header --update` writes this file.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
";

/// Compares the file with what the sources say, or writes it.
///
/// # Errors
/// The file is not up to date: with the difference.
pub(crate) fn run(root: &Path, update: bool) -> Result<()> {
    let text = generate(&root.join(SOURCE))?;
    let file = root.join(FILE);
    if update {
        return std::fs::write(&file, text).with_context(|| FILE.to_owned());
    }
    let present = std::fs::read_to_string(&file).with_context(|| FILE.to_owned())?;
    if present != text {
        let diff = TextDiff::from_lines(&present, &text);
        bail!(
            "{FILE} is not what the sources say: cargo xtask header --update\n{}",
            diff.unified_diff().header(FILE, SOURCE)
        );
    }
    Ok(())
}

fn generate(source: &Path) -> Result<String> {
    let mut config = Config {
        language: Language::C,
        cpp_compat: true,
        style: Style::Tag,
        header: Some(PREFACE.into()),
        include_guard: Some("FLAGSTONE_H".into()),
        no_includes: true,
        sys_includes: vec!["stddef.h".into()],
        usize_is_size_t: true,
        documentation_style: DocumentationStyle::Doxy,
        line_length: 110,
        ..Config::default()
    };
    for (rust, c) in [
        ("FlagstoneCache", "flagstone_cache"),
        ("FlagstoneConstructor", "flagstone_constructor"),
    ] {
        config.export.rename.insert(rust.into(), c.into());
    }
    let bindings = Builder::new()
        .with_config(config)
        .with_src(source)
        .generate()
        .map_err(|error| anyhow!("{}: {error}", source.display()))?;
    let mut bytes = Vec::new();
    bindings.write(&mut bytes);
    let text = String::from_utf8(bytes).context("the header")?;
    Ok(finished(&text))
}

/// What Rust's documentation has under the heading of safety is what a caller in C promises as well; and comments are such that
/// every version of C knows them.
fn finished(text: &str) -> String {
    let text = text.replace(" * # Safety\n", " * The caller promises:\n");
    let mut lines = Vec::new();
    for line in text.trim_start().lines() {
        lines.push(match line.split_once(" // ") {
            Some((code, comment)) => format!("{} /* {comment} */", code.trim_end()),
            None => line.to_owned(),
        });
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exported_function_of_the_source_is_in_the_header() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(SOURCE);
        let header = generate(&source).unwrap();
        let rust = std::fs::read_to_string(&source).unwrap();
        let names: Vec<_> = rust
            .split("extern \"C\" fn ")
            .skip(1)
            .filter_map(|rest| rest.split('(').next())
            .filter(|name| name.starts_with("flagstone_"))
            .collect();
        assert!(names.len() >= 9, "{names:?}");
        for name in names {
            assert!(header.contains(&format!("{name}(")), "{name}");
        }
        assert!(header.contains("extern \"C\"") && !header.contains("# Safety"));
    }
}
