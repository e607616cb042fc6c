//! Links between the documents: every relative link in a Markdown file leads to a file of the repository, and
//! every fragment to a heading.

use anyhow::{Result, bail};
use pulldown_cmark::{Event, Parser, Tag, TagEnd};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Checks every Markdown file below `root`.
///
/// # Errors
/// Every broken link, with the document it is in.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut documents = Vec::new();
    collect(root, &mut documents)?;
    let mut broken = Vec::new();
    for document in &documents {
        let text = std::fs::read_to_string(document)?;
        for link in links(&text) {
            if let Some(reason) = problem(document, &link) {
                broken.push(format!(
                    "{}: {link}: {reason}",
                    document.strip_prefix(root).unwrap_or(document).display()
                ));
            }
        }
    }
    if !broken.is_empty() {
        bail!("broken links:\n  {}", broken.join("\n  "));
    }
    Ok(())
}

fn collect(folder: &Path, documents: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() && name != "target" && name != ".git" {
            collect(&path, documents)?;
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "md") {
            documents.push(path);
        }
    }
    documents.sort();
    Ok(())
}

fn links(text: &str) -> Vec<String> {
    Parser::new(text)
        .filter_map(|event| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                Some(dest_url.into_string())
            }
            _ => None,
        })
        .collect()
}

/// What is wrong with a link; nothing is known of links to other sites.
fn problem(document: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, fragment) = link
        .split_once('#')
        .map_or((link, None), |(file, fragment)| (file, Some(fragment)));
    let target = if file.is_empty() {
        document.to_owned()
    } else {
        document.parent()?.join(file)
    };
    if file.starts_with('/') {
        return Some("not relative".into());
    }
    if !target.exists() {
        return Some("no such file".into());
    }
    let fragment = fragment?;
    let text = std::fs::read_to_string(&target).ok()?;
    (!anchors(&text).contains(fragment)).then(|| "no such heading".into())
}

/// The fragments that lead to the headings of a document: small letters, digits, `-` and `_`; a space is a `-`.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut heading: Option<String> = None;
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(part) | Event::Code(part) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&part);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let anchor = heading.take().unwrap_or_default().to_lowercase();
                let kept = anchor
                    .chars()
                    .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
                found.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_in_text_and_not_in_code() {
        let text = "[a](x.md) ![b](y.png) `[c](z.md)` [d][e]\n\n[e]: w.md\n\n```\n[f](v.md)\n```\n";
        assert_eq!(links(text), ["x.md", "y.png", "w.md"]);
    }

    #[test]
    fn headings_have_the_fragments_that_forges_give_them() {
        let found = anchors("# The `run` command\n\n## 1. What, why?\n");
        assert!(
            found.contains("the-run-command") && found.contains("1-what-why"),
            "{found:?}"
        );
    }

    #[test]
    fn a_link_leads_to_a_file_and_a_fragment_to_a_heading() {
        let this = Path::new(env!("CARGO_MANIFEST_DIR")).join("document.md");
        assert_eq!(problem(&this, "Cargo.toml"), None);
        assert_eq!(problem(&this, "../xtask"), None);
        assert_eq!(problem(&this, "https://example.org/absent"), None);
        assert!(
            problem(&this, "absent.md")
                .unwrap()
                .contains("no such file")
        );
        assert!(
            problem(&this, "/etc/passwd")
                .unwrap()
                .contains("not relative")
        );
        let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/document.md");
        assert_eq!(problem(&readme, "MODEL.md#locks"), None);
        assert!(
            problem(&readme, "MODEL.md#absent")
                .unwrap()
                .contains("no such heading")
        );
    }
}
