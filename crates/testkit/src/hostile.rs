//! Whatever reads bytes from the network, fed with any bytes: what the fuzzer and the test of its corpus run.

use openfleet_dist::frame::{HEADER, Header, Payload, Reader};
use openfleet_dist::net::read_frame;
use openfleet_dist::request::push::PushView;
use openfleet_dist::request::{all_reduce, create_tables, exchange_geo, join, pull_sparse, shrink, status};

/// Decodes bytes as everything that a peer may send. Must return, whatever they are.
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
    let _ = all_reduce::decode(bytes, &mut [0.0; 2]);
    let mut reader = Reader::new(bytes);
    while let Ok(view) = exchange_geo::take_changed(&mut reader, 3) {
        assert_eq!(view.rows.len(), view.keys.len() * 3);
    }
    let _ = pull_sparse::take_rows(&mut Reader::new(bytes), bytes.len(), usize::MAX);
    // A slice is always ready: one poll reads what there is.
    let mut from = bytes;
    let mut reading = std::pin::pin!(read_frame(&mut from, 1 << 20, "a test"));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let _ = std::future::Future::poll(reading.as_mut(), &mut context);
}
