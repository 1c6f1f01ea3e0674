//! The two ends of the socket.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use super::MAX_IMAGE;
use super::memory::{memfd, seal};
use super::messages::{Answer, Ask, BYTES};
use crate::pidfd::readable;
use crate::socket::unix;

/// Waits until a descriptor can be read, or for so long. Whether it can.
fn wait(fd: RawFd, until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut poll = readable(fd);
        // Rounded up, so that it does not end early and ask again.
        let ms = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        // SAFETY: one `pollfd` on our stack.
        match unsafe { libc::poll(&raw mut poll, 1, ms) } {
            0 if left.is_zero() => return false,
            n if n > 0 => return true,
            0 => {}
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return false,
        }
    }
}

/// The next message, if one comes in time.
fn next(fd: RawFd, time: Duration) -> io::Result<([u8; BYTES], Option<OwnedFd>)> {
    if !wait(fd, Instant::now() + time) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut bytes = [0; BYTES + 1];
    let (length, came) = unix::receive(fd, &mut bytes)?;
    let whole = bytes[..length].try_into();
    Ok((whole.map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?, came))
}

/// The program's end: one connection for each image.
#[derive(Debug)]
pub struct Asker(OwnedFd);

impl Asker {
    /// Connects to the controller.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect(path: &Path) -> io::Result<Asker> {
        unix::connect(path).map(Asker)
    }

    /// Says something, with a descriptor where that belongs to it.
    ///
    /// # Errors
    /// The controller has gone.
    pub fn say(&self, ask: Ask, with: Option<&File>) -> io::Result<()> {
        unix::send(self.0.as_raw_fd(), &ask.encode(), with.map(AsRawFd::as_raw_fd))
    }

    /// The answer, if it comes in time.
    ///
    /// # Errors
    /// It does not, or is none of this version.
    pub fn answer(&self, time: Duration) -> io::Result<(Answer, Option<OwnedFd>)> {
        let (bytes, came) = next(self.0.as_raw_fd(), time)?;
        let answer = Answer::decode(&bytes).ok_or(io::ErrorKind::InvalidData)?;
        Ok((answer, came))
    }
}

/// The controller's listening socket.
#[derive(Debug)]
pub struct Desk(OwnedFd);

impl Desk {
    /// Listens at `path`, where nothing may be yet.
    ///
    /// # Errors
    /// It cannot, or the path has more than 107 bytes.
    pub fn listen(path: &Path) -> io::Result<Desk> {
        let socket = unix::new_socket()?;
        unix::bind(&socket, path)?;
        unix::listen(&socket, 64)?;
        Ok(Desk(socket))
    }

    /// The next connection, if one comes in time.
    pub fn accept(&self, time: Duration) -> Option<Seat> {
        let fd = self.0.as_raw_fd();
        if !wait(fd, Instant::now() + time) {
            return None;
        }
        let socket = unix::accept(fd)?;
        let (pid, uid) = unix::credentials(socket.as_raw_fd())?;
        Some(Seat { socket, pid, uid })
    }
}

/// The controller's end of a connection.
#[derive(Debug)]
pub struct Seat {
    socket: OwnedFd,
    /// The program, in the controller's pid namespace; 0 if it lies outside it.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
}

impl Seat {
    /// What the program says next, if it does in time.
    ///
    /// # Errors
    /// It does not, it has closed the connection, or it speaks another version.
    pub fn next(&self, time: Duration) -> io::Result<(Ask, Option<OwnedFd>)> {
        let (bytes, came) = next(self.socket.as_raw_fd(), time)?;
        Ok((Ask::decode(&bytes).ok_or(io::ErrorKind::InvalidData)?, came))
    }

    /// Answers, with a descriptor where that belongs to it.
    ///
    /// # Errors
    /// The program has gone.
    pub fn answer(&self, answer: Answer, with: Option<&impl AsFd>) -> io::Result<()> {
        let with = with.map(|with| with.as_fd().as_raw_fd());
        unix::send(self.socket.as_raw_fd(), &answer.encode(), with)
    }
}

/// A memfd to write an image to, for the program's end; [`close_image`] makes it ready to be sent.
///
/// # Errors
/// The system gives none.
pub fn open_image() -> io::Result<File> {
    memfd(c"gpuwhy-image")
}

/// Seals what was written.
///
/// # Errors
/// It is empty or too large.
pub fn close_image(file: &File) -> io::Result<()> {
    match file.metadata()?.len() {
        1..=MAX_IMAGE => seal(file),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};

    use super::super::messages::Outcome;
    use super::super::plan::Plan;
    use super::*;

    #[test]
    fn an_image_goes_to_the_controller_and_a_plan_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("desk");
        let desk = Desk::listen(&path).unwrap();
        let second = Duration::from_secs(1);
        let controller = std::thread::spawn(move || {
            let seat = desk.accept(second).expect("a connection");
            assert_eq!(seat.pid, std::process::id() as i32);
            let (ask, image) = seat.next(second).unwrap();
            assert_eq!(ask, Ask::Image { arch: 90, sms: 132 });
            let (mut text, mut image) = (String::new(), File::from(image.unwrap()));
            image.rewind().unwrap();
            image.read_to_string(&mut text).unwrap();
            assert_eq!(text, "the image");
            assert!(image.set_len(3).is_err(), "it is sealed");
            let plan = Plan { text: b"another".to_vec(), ..Plan::default() }.share().unwrap();
            seat.answer(Answer::Plan, Some(&plan)).unwrap();
            let (ask, _) = seat.next(second).unwrap();
            assert_eq!(ask, Ask::Loaded { image: 0, outcome: Outcome::Taken });
            assert!(desk.accept(Duration::ZERO).is_none(), "there is no other");
        });
        let asker = Asker::connect(&path).unwrap();
        let mut image = open_image().unwrap();
        assert!(close_image(&image).is_err(), "it is empty");
        image.write_all(b"the image").unwrap();
        close_image(&image).unwrap();
        asker.say(Ask::Image { arch: 90, sms: 132 }, Some(&image)).unwrap();
        let (answer, plan) = asker.answer(second).unwrap();
        assert_eq!(answer, Answer::Plan);
        assert_eq!(Plan::read(plan.unwrap()).unwrap().text, b"another");
        asker.say(Ask::Loaded { image: 0, outcome: Outcome::Taken }, None).unwrap();
        controller.join().unwrap();
    }

    #[test]
    fn a_controller_that_does_not_answer_costs_the_time_that_was_given() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("desk");
        let _desk = Desk::listen(&path).unwrap();
        let asker = Asker::connect(&path).unwrap();
        let (begin, time) = (Instant::now(), Duration::from_millis(50));
        let error = asker.answer(time).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begin.elapsed() >= time);
    }
}
