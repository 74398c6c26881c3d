//! A fake of what lies between regions: the mirror's stream over a link that delays, and holds everything back while it is cut.

use crate::{
    plan::REGIONS,
    world::{Process, World},
};
use anyhow::{Context, Result, bail};
use futures::{Stream, StreamExt, stream};
use mirror::{
    Ask, Received, wire,
    wire::v1::{FollowRequest, Frame, From, mirror_server::Mirror},
};
use std::{sync::Arc, time::Duration};
use tonic::{Request, Status};

/// Frames that travel together.
const FRAMES_TOGETHER: usize = 64;

/// See [`mirror::wire::receive_frames`]: calls the peer's real sender.
pub async fn receive_frames(process: Arc<Process>, ask: Ask) -> Result<Received> {
    let (world, to) = (Arc::clone(&process.world), process.region);
    let from = REGIONS.iter().position(|region| *region == ask.peer).context("no such peer")?;
    let way_ms = process.draw(|random| random.pick(&[15, 25, 45, 90]));
    tokio::time::sleep(Duration::from_millis(way_ms)).await;
    let sender = {
        let (state, now_ms) = (world.state(), world.now_ms());
        let open = state.reaches(from, to, now_ms) && state.reaches(to, from, now_ms);
        open.then(|| state.regions[from].sender.clone())
    };
    let Some(sender) = sender else {
        // Nothing answers a connection that is begun over a cut link.
        tokio::time::sleep(Duration::from_secs(3)).await;
        bail!("connect to {}: no answer", ask.peer);
    };
    let sender = sender.with_context(|| format!("{} refuses the connection", ask.peer))?;
    let places = ask.from.iter().map(|place| From {
        topic: place.partition.topic.to_string(),
        partition: place.partition.partition.into(),
        offset: place.next,
    });
    let request = FollowRequest { region: REGIONS[to].into(), from: places.collect() };
    let answer = tokio::time::timeout(Duration::from_secs(10), sender.follow(Request::new(request)));
    let answer = answer.await.with_context(|| format!("{} did not answer in time", ask.peer))?;
    let answer = answer.map(|response| travel(world, from, to, way_ms, response.into_inner()));
    wire::received(&ask.peer, answer)
}

/// Frames on their way: in order, late, and held back while the link is cut.
fn travel(
    world: Arc<World>,
    from: usize,
    to: usize,
    way_ms: u64,
    frames: impl Stream<Item = Result<Frame, Status>> + Send + 'static,
) -> impl Stream<Item = Result<Frame, Status>> + Send + 'static {
    let bunches = frames.ready_chunks(FRAMES_TOGETHER).then(move |bunch| {
        let world = Arc::clone(&world);
        async move {
            tokio::time::sleep(Duration::from_millis(way_ms)).await;
            loop {
                let until_ms = world.state().regions[from].cut_until_ms[to];
                if until_ms <= world.now_ms() {
                    return stream::iter(bunch);
                }
                world.until_ms(until_ms).await;
            }
        }
    });
    bunches.flatten()
}
