//! Feeds arbitrary bytes to everything that reads from the network; used by the fuzzer and by the test of its corpus.

use openfleet_core::strategy::Mode;
use openfleet_dist::frame::{HEADER, Header, Payload, Reader};
use openfleet_dist::gradients::PushView;
use openfleet_dist::net::read_frame;
use openfleet_dist::pull::{self, PullView};
use openfleet_dist::request::create_tables::{CreateTables, Description};
use openfleet_dist::request::{
    Kind, Request, action, all_reduce, create_tables, enter, exchange_geo, heartbeat, inspect, join, shrink, status,
};
use openfleet_dist::server::{Outcome, State};
use openfleet_table::{Adam, DenseSpec, Initializer, Optimizer, Schedule, SparseSpec};

/// Decodes bytes as everything that a peer may send. Must return, whatever the bytes are.
pub fn decode_as_everything(bytes: &[u8]) {
    if let Some(header) = bytes.first_chunk::<HEADER>() {
        let _ = Header::decode(header, 1 << 20);
    }
    let mut payload = Payload::zeros(bytes.len());
    payload.bytes_mut().copy_from_slice(bytes);
    let bytes = payload.bytes();
    let _ = PushView::decode(bytes);
    let _ = status::decode(bytes);
    let _ = create_tables::decode(bytes);
    let _ = join::decode(bytes);
    let _ = shrink::decode(bytes);
    let _ = inspect::decode(bytes);
    let _ = enter::decode(bytes);
    let _ = action::decode(bytes);
    let _ = heartbeat::decode(bytes);
    let _ = all_reduce::decode(bytes, &mut [0.0; 2]);
    let mut reader = Reader::new(bytes);
    while let Ok(view) = exchange_geo::take_changed(&mut reader, 3) {
        assert_eq!(view.rows.len(), view.keys.len() * 3);
    }
    let _ = PullView::decode(bytes);
    let _ = pull::take_rows(&mut Reader::new(bytes), bytes.len(), usize::MAX);
    // A slice is always ready: one poll reads everything.
    let mut from = bytes;
    let mut reading = std::pin::pin!(read_frame(&mut from, 1 << 20, "a test"));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let _ = std::future::Future::poll(reading.as_mut(), &mut context);
}

/// Sends arbitrary requests to a server in the mode given by the first byte. The other bytes give, for each request, its kind,
/// the worker that sends it, the number of words in its payload, and the payload. Must return, whatever the bytes are.
pub fn ask_anything(bytes: &[u8]) {
    let Some((&mode, mut rest)) = bytes.split_first() else { return };
    let state = State::new();
    let tables = tables(Mode::ALL[usize::from(mode) % Mode::ALL.len()]);
    let create = CreateTables { description: tables, first_values: vec![vec![0.0; 3]] };
    let Ok(payload) = create.encode() else { panic!("a description is encoded") };
    assert!(matches!(state.handle(0, Kind::CreateTables, payload), Outcome::Now(Ok(_))));
    // No one waits for later replies, but their channels must stay open.
    let mut waiting = Vec::new();
    while let [kind, worker, words, more @ ..] = rest {
        let length = (usize::from(*words) * 4).min(more.len());
        let mut payload = Payload::zeros(length);
        payload.bytes_mut().copy_from_slice(&more[..length]);
        let kind = Kind::ALL[usize::from(*kind) % Kind::ALL.len()];
        waiting.push(state.handle(u32::from(*worker) % 3, kind, payload));
        rest = &more[length..];
    }
    let _ = state.status();
}

/// Two workers of two threads, a table with two floats per row and an array of three.
fn tables(mode: Mode) -> Description {
    let (optimizer, schedule) = (Optimizer::Adam(Adam::default()), Schedule::Constant(0.1));
    let sparse = SparseSpec {
        dim: 2,
        optimizer,
        schedule: schedule.clone(),
        regularizer: None,
        initializer: Initializer::Constant(0.0),
        seed: 1,
        shards: 2,
        accessor: Default::default(),
        admission: Default::default(),
        capacity: None,
        non_finite: Default::default(),
        salted: false,
        storage: Default::default(),
    };
    let dense = DenseSpec { shape: vec![3], optimizer, schedule, regularizer: None, non_finite: Default::default() };
    Description {
        mode,
        workers: 2,
        threads: 2,
        sparse: vec![("rows".into(), sparse)],
        dense: vec![("array".into(), dense)],
        share: Default::default(),
    }
}
