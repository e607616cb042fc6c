//! Every experiment that runs inside one process, with little to do: tables of 80 columns, samples as JSON.

use std::process::Command;

fn bench(arguments: &[&str]) -> (String, serde_json::Value) {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("samples.json");
    let output = Command::new(env!("CARGO_BIN_EXE_flagstone"))
        .arg("bench")
        .args(arguments)
        .args(["--rounds", "1", "--slice", "0", "--objects", "64", "--json"])
        .arg(&json)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // Where CPU 0 is not allowed, the plain form can not take part, and the command says so.
    assert!(
        output.status.success() || text.contains("plain arrays are CPU 0's"),
        "{arguments:?}\n{text}\n{said}"
    );
    // The path of the samples may be long.
    let tables = text
        .lines()
        .filter(|line| !line.starts_with("samples: ") && !line.starts_with("data: "))
        .filter(|line| !line.starts_with("not measured: "));
    for line in tables {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let json = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    (text, json)
}

/// The metrics of a subject.
fn metrics<'a>(report: &'a serde_json::Value, subject: &str) -> Vec<&'a str> {
    let results = report["results"].as_array().unwrap();
    let of = results.iter().filter(|r| r["contestant"] == subject);
    of.map(|r| {
        assert_eq!(r["samples"].as_array().unwrap().len(), 1);
        r["metric"].as_str().unwrap()
    })
    .collect()
}

#[test]
fn fastpath_measures_what_is_linked_in_and_what_is_known() {
    let (text, json) = bench(&["fastpath", "--only", "in-process", "--only", "class-known"]);
    assert!(metrics(&json, "flagstone").contains(&"linked-pair/64"));
    assert!(metrics(&json, "inlined").contains(&"linked-batch/16384/free"));
    for form in ["restartable", "exchange", "tid-array", "tid-list"] {
        assert!(metrics(&json, form).contains(&"known/cache-by-floor"));
    }
    if cfg!(feature = "rivals") {
        assert!(metrics(&json, "mimalloc").contains(&"linked-pair/64"));
    } else {
        assert!(text.contains("--features rivals"));
    }
}

#[test]
fn contention_shows_every_stage_and_counts_locks() {
    let only = ["stages", "exchange", "steps"].map(|part| ["--only", part]);
    let (text, json) = bench(&[&["contention"], only.as_flattened()].concat());
    for stage in ["before", "+colour", "+refill", "+look", "+release"] {
        let metrics = metrics(&json, stage);
        for metric in ["stages/4096/alloc", "exchange/32", "steps/64/locks"] {
            assert!(metrics.contains(&metric), "{stage}: {metric}");
        }
    }
    assert!(text.contains("452/690"), "the published figures are there");
}

#[test]
fn layouts_show_the_rule_and_what_it_costs() {
    let (text, json) = bench(&["layouts"]);
    assert!(text.contains("nothing set aside"));
    assert_eq!(json["index_at_end"][0]["older_bytes"], 4100);
    assert_eq!(json["linked"]["in-object"], 95);
    let costs = &json["costs"];
    assert!(metrics(costs, "in-object").contains(&"placement/4096/alloc"));
    assert!(metrics(costs, "elsewhere").contains(&"placement/32/alloc"));
    assert!(metrics(costs, "linked").contains(&"index/64/free"));
}

#[test]
fn randomisation_shows_both_forms_of_cache() {
    let (text, json) = bench(&["randomisation"]);
    for subject in ["array", "array random", "list", "list random"] {
        let metrics = metrics(&json, subject);
        for metric in ["fresh/8/both", "again/64/pair", "written/16384/alloc"] {
            assert!(metrics.contains(&metric), "{subject}: {metric}");
        }
    }
    assert!(text.contains("geom. mean"));
}

#[test]
fn page_tables_are_measured_beside_those_of_other_crates() {
    let (text, json) = bench(&["pgtable"]);
    for subject in ["shared", "exclusive", "quiet", "x86_64", "multiarch"] {
        let metrics = metrics(&json, subject);
        for metric in ["pgtable/1/map", "used/512/unmap", "pgtable/4096/walk"] {
            assert!(metrics.contains(&metric), "{subject}: {metric}");
        }
    }
    assert!(text.contains("shared/best"));
}

#[test]
fn invalidations_are_counted_beside_those_of_one_page_at_a_time() {
    let (text, json) = bench(&["tlb"]);
    for subject in ["gathered", "one by one"] {
        assert!(metrics(&json, subject).contains(&"tlb/munmap/remote"));
    }
    let row = text.lines().find(|line| line.starts_with("unmap 1 GiB"));
    let row: Vec<&str> = row.unwrap().split_whitespace().collect();
    assert_eq!(row[row.len() - 2..], ["1/1/3", "262144/262144/786432"]);
}

#[test]
fn a_part_that_does_not_exist_is_named_with_those_that_do() {
    for experiment in [
        "fastpath",
        "contention",
        "layouts",
        "randomisation",
        "pgtable",
        "tlb",
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_flagstone"))
            .args(["bench", experiment, "--only", "nothing"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains("nothing: no such part; there are: "),
            "{said}"
        );
    }
}
