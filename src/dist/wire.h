/* wire.h - messages between processes of ours over TCP: framed, bounded, checked, and not waited for longer than said.
 *
 *     frame     magic | kind | bytes | hash of the bytes | the bytes
 *
 * A peer is not trusted to be well, and the network is: there is no key and no encryption, so an address to listen on
 * belongs to a network of one's own. Numbers are of the machine's byte order, which the magic tells. One thread at a
 * time reads a wire, and one writes it. A host that is gone without a word, or takes nothing, ends a wire after
 * WIRE_GONE_S, also one on which nothing is said: the system asks it. */
#pragma once

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

enum { WIRE_GONE_S = 60 };

struct wire;

/* "host:port"; port 0 listens on any, and *port says which. ERR_IO names the address. */
enum status wire_listen(const char *address, int *fd, int *port, struct error *err);

/* Waits for the next one, until wire_stop_listening; ERR_IO then. */
enum status wire_accept(int fd, struct wire **out, struct error *err);
bool wire_comes(int fd, int timeout_ms); // whether there is one to be accepted
void wire_stop_listening(int fd);        // any thread; the descriptor is closed by wire_close_listening
void wire_close_listening(int fd);

/* All addresses that the name has are tried, one behind the other, within timeout_ms; what is wrong with the last one
 * is told. How long it takes to find the addresses of a name is the system's affair. */
enum status wire_connect(const char *address, int timeout_ms, struct wire **out, struct error *err);
void wire_close(struct wire *w);                     // NULL is fine
bool wire_is_closed(const struct wire *w);           // by the peer, where it owes nothing; does not wait
bool wire_has_frame(const struct wire *w, size_t n); // of n bytes, or something that is none; does not wait
void wire_break(struct wire *w);                     // any thread: whoever reads or writes it fails now

/* ERR_IO when the peer is gone or takes nothing before until_us (clock_us). */
enum status wire_send(struct wire *w, uint32_t kind, struct str bytes, int64_t until_us, struct error *err);

/* Until something comes, of which wire_receive reads all; or until the peer is gone, which wire_receive says. ERR_IO:
 * nothing came before until_us. */
enum status wire_await(struct wire *w, int64_t until_us, struct error *err);

/* bytes are appended. ERR_IO when the peer is gone, or is late; ERR_LIMIT: more than most_bytes; ERR_FORMAT: it is no
 * frame, or was changed on its way. */
enum status wire_receive(struct wire *w, uint32_t *kind, struct buf *bytes, size_t most_bytes, int64_t until_us,
                         struct error *err);
