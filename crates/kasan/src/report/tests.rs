//! Reports as people and programs read them: golden files.

use super::*;
use crate::report::bug::{DamagedRange, SlabUse};
use flagstone_types::{Bytes, Gfp, Nid};
use std::format;
use std::string::String;

/// Two modules and a kernel's functions.
struct Known;

impl Symbols for Known {
    fn resolve(&self, pc: usize, tell: &mut dyn FnMut(Symbol<'_>)) {
        match pc {
            0x5555_0000..=0x5555_ffff => tell(Symbol {
                module: Some("victim"),
                module_offset: pc - 0x5555_0000,
                ..Symbol::default()
            }),
            0xffff_ffff_8100_0000.. => tell(Symbol {
                function: Some("kmalloc_oob_right"),
                offset: pc & 0xfff,
                size: 0x1000,
                module: Some("test_kasan"),
                ..Symbol::default()
            }),
            _ => {}
        }
    }
}

const NOW: [usize; 3] = [0x5555_1234, 0x5555_2468, 0x7f00_0000_1000];
const ALLOCATED: [usize; 2] = [0x5555_1111, 0x5555_2468];
const FREED: [usize; 2] = [0x5555_1122, 0x5555_2468];
const START: usize = 0x7f12_3456_7800;

fn by() -> Context<'static> {
    Context {
        task: 2760,
        name: "victim",
        cpu: CpuId(1),
        now: Nanos(12_345_678_901),
        stack: Stack::new(&NOW),
    }
}

fn event(stack: &'static [usize], when: u64) -> Event<'static> {
    Event {
        task: 2760,
        cpu: CpuId(0),
        when: Nanos(when),
        stack: Stack::new(stack),
    }
}

fn object(state: ObjectState) -> Place<'static> {
    Place::Object(Object {
        cache: "kmalloc-128",
        start: START,
        size: Bytes(128),
        requested: Some(Bytes(123)),
        state,
        allocated: Some(event(&ALLOCATED, 12_000_000_000)),
        freed: (state != ObjectState::Allocated).then(|| event(&FREED, 12_300_000_000)),
        offset_in_slab: Some(Bytes(2048)),
    })
}

fn access(bug: AccessBug, address: usize, kind: AccessKind) -> Bug<'static> {
    Bug::Access(Access {
        bug,
        address,
        size: Bytes(1),
        kind,
        first_bad: address,
    })
}

fn rows(address: usize, state: u8) -> ShadowRows {
    let mut middle = [0xfc; 16];
    middle[..15].fill(state);
    middle[15] = if state == 0 { 3 } else { state };
    ShadowRows {
        address,
        start: START - 256,
        rows: [
            None,
            Some([0xfc; 16]),
            Some(middle),
            Some([0xfc; 16]),
            Some([0xff; 16]),
        ],
    }
}

/// Its text and its JSON; the JSON is checked by a parser.
fn both(report: &Report<'_>) -> String {
    let mut json = String::new();
    report.write_json(&Known, &mut json).unwrap();
    assert!(!json.contains('\n'));
    let value: serde_json::Value = serde_json::from_str(&json).expect(&json);
    assert_eq!(value["bug"], report.bug.name());
    let text = format!("{}", report.text(&Known));
    for line in text.lines() {
        let dump = report.dumps.iter().any(|dump| line.starts_with(dump.label));
        // As in Linux: the line about a copy is as long as it is.
        let copy = line.starts_with("usercopy:");
        assert!(dump || copy || line.len() <= 80, "{line}");
    }
    format!("{text}{}", serde_json::to_string_pretty(&value).unwrap())
}

#[test]
fn an_overrun_of_an_object() {
    let shadow = rows(START + 123, 0);
    let mut report = Report::new(
        access(AccessBug::SlabOutOfBounds, START + 123, AccessKind::Write),
        by(),
    );
    report.place = object(ObjectState::Allocated);
    report.shadow = Some(&shadow);
    insta::assert_snapshot!(both(&report));
}

#[test]
fn a_use_after_free() {
    let shadow = rows(START + 8, 0xfb);
    let mut report = Report::new(
        access(AccessBug::SlabUseAfterFree, START + 8, AccessKind::Read),
        by(),
    );
    report.place = object(ObjectState::Quarantined);
    report.shadow = Some(&shadow);
    insta::assert_snapshot!(both(&report));
}

#[test]
fn a_double_free() {
    let free = BadFree {
        bug: FreeBug::Double,
        address: START,
    };
    let mut report = Report::new(Bug::Free(free), by());
    report.place = object(ObjectState::Freed);
    insta::assert_snapshot!(both(&report));
}

#[test]
fn an_overrun_of_a_variable() {
    let mut report = Report::new(
        access(AccessBug::GlobalOutOfBounds, 0x4040_000d, AccessKind::Read),
        by(),
    );
    report.place = Place::Global {
        name: "global_array",
        module: "victim",
        start: 0x4040_0000,
        size: Bytes(10),
    };
    insta::assert_snapshot!(both(&report));
}

#[test]
fn an_overrun_in_a_frame() {
    let mut report = Report::new(
        access(
            AccessBug::StackOutOfBounds,
            0x7ffc_0000_004a,
            AccessKind::Read,
        ),
        by(),
    );
    report.place = Place::Stack {
        task: 2760,
        name: "victim",
        function: 0x5555_1200,
        start: 0x7ffc_0000_0000,
        variables: "2 48 1 3 x:7 64 10 8 array:12",
    };
    insta::assert_snapshot!(both(&report));
}

#[test]
fn a_kernels_wild_access_names_functions() {
    let stack = [0xffff_ffff_8100_10a8, 0xffff_ffff_8100_2010];
    let mut by = by();
    by.stack = Stack::new(&stack);
    let report = Report::new(access(AccessBug::NullPtrDeref, 8, AccessKind::Write), by);
    insta::assert_snapshot!(both(&report));
}

#[test]
fn a_red_zone_that_was_written_to() {
    let damage = Damage {
        cache: "kmalloc-128",
        problem: Problem::RightRedzone,
        object: START,
        range: Some(DamagedRange {
            from: START + 123,
            to: START + 124,
            offset: Bytes(2048 + 123),
            found: 0,
            expected: 0xcc,
        }),
        slab: Some(SlabUse {
            address: START - 2048,
            objects: 32,
            used: 31,
        }),
    };
    let dumps = [
        Dump {
            label: "Redzone",
            address: START - 16,
            bytes: &[0xcc; 16],
        },
        Dump {
            label: "Object",
            address: START,
            bytes: b"a string of 23 letters!",
        },
        Dump {
            label: "Redzone",
            address: START + 123,
            bytes: &[0, 0, 0xcc, 0xcc, 0xcc],
        },
    ];
    let fixes = [
        Fix::Restoring {
            what: "Right Redzone",
            from: START + 123,
            bytes: 2,
            value: 0xcc,
        },
        Fix::NotFreed { object: START },
    ];
    let mut report = Report::new(Bug::Damage(damage), by());
    report.place = object(ObjectState::Freed);
    report.dumps = &dumps;
    report.fixes = &fixes;
    report.notes = &["a \"note\"\twith what JSON escapes\u{1}"];
    insta::assert_snapshot!(both(&report));
}

#[test]
fn a_copy_that_spans_objects() {
    let copy = UserCopy {
        direction: CopyDirection::Exposure,
        what: "SLUB object",
        detail: "kmalloc-128",
        address: START + 100,
        offset: Bytes(100),
        size: Bytes(64),
    };
    insta::assert_snapshot!(both(&Report::new(Bug::UserCopy(copy), by())));
}

#[test]
fn no_memory_for_a_slab() {
    let nodes = [NodeUse {
        nid: Nid(0),
        active_slabs: 2,
        slabs: 3,
        active_objects: 40,
        objects: 96,
    }];
    let shortage = MemoryShortage {
        nid: None,
        gfp: Gfp::KERNEL,
        cache: "kmalloc-128",
        object_size: Bytes(120),
        size: Bytes(128),
        order: 0,
        nodes: &nodes,
    };
    insta::assert_snapshot!(both(&Report::new(Bug::NoMemory(shortage), by())));
}

#[test]
fn a_description_of_a_frame_that_is_nonsense_is_left_out() {
    for variables in [
        "",
        "x",
        "3",
        "1 2",
        "1 2 3 400 a",
        "99999999999999999999 1",
        "1 1 18446744073709551615 1 x",
    ] {
        let mut report = Report::new(
            access(AccessBug::UseAfterScope, 0x7ffc_0000_004a, AccessKind::Read),
            by(),
        );
        report.place = Place::Stack {
            task: 1,
            name: "x",
            function: 1,
            start: 0,
            variables,
        };
        assert!(format!("{report}").contains("is located at offset"));
    }
}
