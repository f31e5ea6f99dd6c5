package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

// alike are commands that have to do the same on every engine: the same
// output, the same status. Each runs in a folder of its own, in sh, or in
// python3 where its text starts with "#py".
var alike = []string{
	// Ends and streams.
	`true`, `false`, `exit 7`, `exit 255`, `exit 256`, `kill -TERM $$`, `kill -KILL $$`, `kill -SEGV $$`,
	`echo out; echo err >&2`, `printf '\000\377\n'`, `nosuchcommand`, `/etc/passwd`, `/`, `exec >&-; echo gone`,
	`cat`, `read x; echo "got $x: $?"`, `test -t 0; echo $?`, `(exit 3) | true; echo $?`,
	`exec 2>/dev/null; sleep 100 & kill $!; wait $!; echo $?`, `sh -c 'kill -9 $$'; echo $?`,
	`trap 'echo caught' USR1; kill -USR1 $$; echo after`,
	`trap '' PIPE; yes 2>/dev/null | head -n 2; echo $?`,
	`head -c 1000000 /dev/zero | sha256sum`, `seq 100000 | tail -n 1`, `seq 20000 | sort -R | sort -n | sha256sum`,
	`mkfifo p; (echo through > p &) ; cat p`, `echo a | tee b c; cat b c`,
	// Processes.
	`echo $$ | grep -c '^[0-9]*$'`, `for i in 1 2 3 4 5; do (echo $i) & wait; done`,
	`#py
import os
pid = os.fork()
if pid == 0: os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))`,
	`#py
import threading
n = []
ts = [threading.Thread(target=lambda i=i: n.append(i)) for i in range(50)]
[t.start() for t in ts]; [t.join() for t in ts]
print(sorted(n) == list(range(50)))`,
	`#py
import multiprocessing
def f(x): return x * x
if __name__ == "__main__":
    with multiprocessing.Pool(3) as p: print(p.map(f, range(10)))`,
	`#py
import subprocess
p = subprocess.run(["sh", "-c", "cat; exit 4"], input=b"x" * 100000, capture_output=True)
print(p.returncode, len(p.stdout))`,
	`#py
import signal, time
signal.signal(signal.SIGALRM, lambda *a: print("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.02)
signal.pause()`,
	`#py
import os, signal
r, w = os.pipe()
if os.fork() == 0:
    os.setsid(); os.write(w, b"%d" % (os.getsid(0) == os.getpid())); os._exit(0)
os.wait(); print(os.read(r, 9))`,
	`#py
import resource
print(resource.getrlimit(resource.RLIMIT_CORE)[0] in (0, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
fs = []
try:
    while True: fs.append(open("/dev/null"))
except OSError as e: print(e.errno)`,
	`#py
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try: open("f", "wb", buffering=0).write(b"x" * 2000); print(len(open("f", "rb").read()))
except OSError as e: print(e.errno)`,
	`nice -n 5 nice`, `ulimit -n 50; ulimit -n`, `setsid sh -c 'echo own session'`, `timeout 0.1 sleep 10; echo $?`, `timeout -s KILL 0.1 sleep 10; echo $?`,
	`env -i A=1 env`, `env -i /bin/sh -c 'echo $HOME-$PATH' | head -c 1`, `echo "$HOME $PWD" | sed 's,/work/.*,/work,'`, `id`, `id -u nobody`, `umask; touch a; stat -c %a a`,
	`su nobody -s /bin/sh -c 'id -un; cat /etc/shadow' 2>&1`,
	`printf '#!/bin/sh\necho "$0 $1"\n' > s; chmod +x s; ./s one; sh s two`, `printf 'echo no shebang' > s; chmod +x s; ./s`, `printf '#!/nosuch\n' > s; chmod +x s; ./s; echo $?`,
	`printf 'garbage\001' > s; chmod +x s; ./s 2>&1 | tail -c 20; echo $?`, `cp /bin/true t; chmod -x t; ./t; echo $?`,
	// Files.
	`touch a; mkdir d; ln -s a l; ln a h; mkfifo f; stat -c '%n %F %h %a' a d l h; stat -c '%F %a' f`,
	`mkdir -p x/y/z; rmdir x 2>&1; rm -r x; ls`, `touch 'a b' -- -c; ls -1 --quoting-style=c`, `printf x > "$(printf 'bad\377name')"; ls | od -c`,
	`touch "$(head -c 255 /dev/zero | tr '\0' n)"; ls | wc -c; touch "$(head -c 256 /dev/zero | tr '\0' n)" 2>&1 | tail -c 20`,
	`echo a > f; echo b >> f; cat f; : > f; wc -c f`, `truncate -s 1G big; stat -c %s big; cp --sparse=always big c; stat -c %s c`,
	`dd if=/dev/zero of=f bs=1 count=1 seek=4095 status=none; od -An -c f`, `truncate -s 100000 f; stat -c %s f; truncate -s 5 f; stat -c %s f`,
	`touch -d '2001-02-03 04:05:06.789 UTC' f; stat -c %Y f; stat -c %.9Y f`, `touch -h -d @5 l 2>&1; ln -s x l; touch -h -d @5 l; stat -c %Y l`, `touch -d @-1000 f; stat -c %Y f`, `touch -d @5000000000 f; stat -c %Y f`,
	`chmod 4755 /bin/true 2>&1; touch f; chmod 6777 f; stat -c %a f`, `touch f; chown 1234:5678 f; stat -c '%u %g' f; chown nobody f; stat -c %U f`,
	`mkdir d; chmod 1777 d; su nobody -s /bin/sh -c 'touch d/n'; stat -c '%U %a' d/n d`, `mkdir d; chmod g+s d; mkdir d/e; stat -c %a d/e`,
	`touch f; chmod 000 f; cat f; echo $?; su nobody -s /bin/sh -c "cat $PWD/f" 2>&1 | tail -c 19`, `cat nosuch; echo $?`, `cd nosuch; echo $?`, `ls nosuch 2>&1`,
	`ln -s l l; cat l 2>&1`, `ln -s /nosuch l; cat l 2>&1; readlink l; readlink -f l`, `touch f; ls f/ 2>&1`, `mkdir d; echo x > d; echo $?`, `touch a; ln a b; rm a; stat -c %h b`,
	`mkdir d; exec 3<d; rm -r d; ls /proc/self/fd/3 2>/dev/null; echo $?`, `echo x > f; exec 3<f; rm f; cat <&3`, `mkdir a; touch a/f; mv a b; ls b`, `mkdir a b; touch b/x; mv -T a b 2>&1 | tail -c 20`,
	`for i in $(seq 300); do echo $i > f$i; done; ls | wc -l; cat f* | sort -n | sha256sum; rm f*; ls`,
	`tar -cf - -C /etc passwd group | tar -tvf - | awk '{print $1, $2, $3, $6}'`, `mkdir s; cp -a /usr/share/doc/dash s/; tar -cf a.tar s; mkdir o; tar -xf a.tar -C o; diff -r s o/s && echo same`,
	`find /etc -maxdepth 1 -type f | sort | sha256sum`, `stat -c '%n %a %U %G %F' /etc /etc/passwd /etc/shadow /tmp /bin /dev/null /dev/zero /dev/tty`,
	`df --output=target . | tail -n 1 | head -c 1`, `mktemp -u | head -c 5`, `cmp /dev/zero /dev/zero -n 10 && echo equal`, `ls -a /dev/fd/ >/dev/null && echo there`, `ls -d /dev/shm /dev/pts /proc/self /sys`,
	`#py
import os
os.mkdir("d"); fd = os.open("d", os.O_RDONLY)
f = os.open("x", os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=fd); os.write(f, b"1"); os.close(f)
print(os.listdir(fd), os.stat("x", dir_fd=fd).st_size)
try: os.open("x", os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=fd)
except OSError as e: print(e.errno)
os.rename("d/x", "d/y"); os.unlink("d/y"); os.rmdir("d"); print(os.listdir("."))`,
	`#py
import os
f = os.open("t", os.O_RDWR | os.O_CREAT)
os.write(f, b"hello"); print(os.pread(f, 3, 1), os.lseek(f, 0, os.SEEK_END)); os.ftruncate(f, 2); print(os.fstat(f).st_size); os.fsync(f); os.fdatasync(f)`,
	`#py
import os
open("f", "w").close(); os.setxattr("f", "user.a", b"v"); print(os.getxattr("f", "user.a"), os.listxattr("f"))
os.removexattr("f", "user.a"); print(os.listxattr("f"))`,
	`#py
import fcntl, os
a = open("f", "w"); b = open("f", "w")
fcntl.flock(a, fcntl.LOCK_EX)
try: fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError as e: print(e.errno)
fcntl.lockf(a, fcntl.LOCK_EX)
if os.fork() == 0:
    try: fcntl.lockf(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e: print(e.errno in (11, 13), flush=True)
    os._exit(0)
os.wait()`,
	`#py
import mmap, os
f = os.open("m", os.O_RDWR | os.O_CREAT); os.ftruncate(f, 8192)
m = mmap.mmap(f, 8192); m[0:5] = b"hello"; m[8190:8192] = b"ok"; m.flush(); m.close()
print(os.pread(f, 5, 0), os.pread(f, 2, 8190))
p = mmap.mmap(f, 8192, flags=mmap.MAP_PRIVATE); p[0:5] = b"other"; print(os.pread(f, 5, 0))`,
	`#py
import mmap, os
m = mmap.mmap(-1, 4096)
if os.fork() == 0: m[0:4] = b"kid!"; os._exit(0)
os.wait(); print(m[0:4])`,
	`#py
import sqlite3
db = sqlite3.connect("d.db"); db.execute("pragma journal_mode=wal"); db.execute("create table t(n)")
with db: db.executemany("insert into t values(?)", [(i,) for i in range(1000)])
print(sqlite3.connect("d.db").execute("select count(*), sum(n) from t").fetchone())`,
	`#py
import os, select
e = select.epoll(); r, w = os.pipe(); e.register(r, select.EPOLLIN)
print(e.poll(0)); os.write(w, b"x"); print(len(e.poll(1)), os.read(r, 1)); os.close(w); print(e.poll(1)[0][1] & select.EPOLLHUP != 0)`,
	`#py
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(0); libc.inotify_add_watch(fd, b".", 0x100)
open("new", "w").close(); d = os.read(fd, 4096); _, mask, _, n = struct.unpack("iIII", d[:16]); print(mask == 0x100, d[16:16 + n].rstrip(b"\0"))`,
	`#py
import ctypes, os
libc = ctypes.CDLL(None); fd = libc.eventfd(3, 0); print(int.from_bytes(os.read(fd, 8), "little"))
fd = libc.memfd_create(b"m", 0); os.write(fd, b"abc"); print(os.lseek(fd, 0, 2))`,
	`#py
import os
with open("a", "wb") as f: f.write(os.urandom(300000))
a, b = os.open("a", os.O_RDONLY), os.open("b", os.O_CREAT | os.O_WRONLY)
n = 0
while True:
    k = os.sendfile(b, a, n, 100000)
    if k == 0: break
    n += k
print(n, open("a", "rb").read() == open("b", "rb").read())`,
	`#py
import os
for e in sorted(os.scandir("/etc/apt"), key=lambda e: e.name): print(e.name, e.is_dir(), e.is_symlink())`,
	// Network, as far as it is inside.
	`#py
import socket, threading
s = socket.create_server(("127.0.0.1", 0)); got = []
def serve():
    c, _ = s.accept()
    while (d := c.recv(65536)): got.append(len(d))
    c.sendall(b"bye"); c.close()
t = threading.Thread(target=serve); t.start()
c = socket.create_connection(s.getsockname()); c.sendall(b"x" * 1000000); c.shutdown(socket.SHUT_WR); print(c.recv(10)); t.join(); print(sum(got))`,
	`#py
import socket
a, b = socket.socketpair(); a.sendall(b"hi"); print(b.recv(9)); a.close(); print(b.recv(9))
s = socket.socket(socket.AF_UNIX); s.bind("sock"); s.listen(); c = socket.socket(socket.AF_UNIX); c.connect("sock"); d, _ = s.accept(); c.sendall(b"u"); print(d.recv(1))`,
	`#py
import array, os, socket
a, b = socket.socketpair(); r, w = os.pipe()
socket.send_fds(a, [b"x"], [w]); _, fds, _, _ = socket.recv_fds(b, 10, 1); os.write(fds[0], b"passed"); print(os.read(r, 10))`,
	`#py
import socket
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("127.0.0.1", 0))
v = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); v.sendto(b"dgram", u.getsockname()); print(u.recv(10))
try: socket.create_connection(("127.0.0.1", 1), 2)
except OSError as e: print(e.errno)
s = socket.socket(socket.AF_INET6); s.bind(("::1", 0)); print(s.getsockname()[0])`,
	`#py
import socket
try: socket.getaddrinfo("no.such.test", 80)
except OSError as e: print(type(e).__name__)
try: socket.create_connection(("198.51.100.7", 80), 5)
except OSError as e: print(type(e).__name__, e.errno)`,
	`getent hosts localhost | head -n 1 | awk '{print $2}'`, `cat /etc/hostname; hostname`, `cat /etc/resolv.conf`,
	`#py
import http.server, threading, urllib.request
s = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
s.RequestHandlerClass.log_message = lambda *a: None
threading.Thread(target=s.serve_forever, daemon=True).start()
open("index.html", "w").write("<p>hello")
print(urllib.request.urlopen("http://127.0.0.1:%d/" % s.server_port).read())`,
	// What root may do.
	`mkdir m; mount -t tmpfs none m && touch m/x && ls m; umount m; ls m`, `mkdir r; mkdir r/bin; chroot r /bin/sh 2>&1 | tail -c 30`, `unshare -m true; echo $?`, `unshare -p -f sh -c 'echo $$'`,
	`hostname other && hostname; hostname -F /etc/hostname`, `mknod n p; stat -c %F n`, `grep -c . /proc/mounts >/dev/null && echo mounts`, `nproc`,
	// Programs.
	`git init -q . && git config user.email a@b && git config user.name n && echo 1 > f && git add f && GIT_COMMITTER_DATE=@5 GIT_AUTHOR_DATE=@5 git commit -qm m && git log --format=%H && git status --short`,
	`git init -q a && cd a && git -c user.email=a@b -c user.name=n commit -q --allow-empty -m x && cd .. && git clone -q a b && ls -A b`,
	`printf 'alpha\nbeta\n' > f; rg -n a f; rg -c zeta; echo $?`, `echo 'a1b22' | sed 's/[0-9]\+/#/g'`, `printf '3 c\n1 a\n2 b\n' | sort | awk '{s+=$1} END {print s, $2}'`, `perl -e 'print join(",", map { $_ * 2 } 1..5), "\n"'`,
	`echo hello | gzip | gunzip; echo hello | gzip -n | sha256sum`, `date -u -d @0 +%F`, `TZ=Pacific/Auckland date -d @0 +%H 2>&1`, `printf '%s\n' a b c | xargs -n 1 -P 3 echo | sort`, `expr 6 \* 7; echo $((2 ** 3)) 2>&1 | tail -n 1`,
	`#py
import asyncio
async def f(i):
    await asyncio.sleep(0.001 * (5 - i)); return i
async def main(): return await asyncio.gather(*map(f, range(5)))
print(asyncio.run(main()))`,
	`#py
import hashlib, json, re, zlib
d = b"abc" * 10000
print(hashlib.sha256(d).hexdigest(), zlib.crc32(zlib.compress(d)), json.dumps({"a": [1, 2.5, None]}), re.findall(r"\w+", "a b-c"))`,
	`#py
print(sum(float(i) ** 0.5 for i in range(10000)), 2 ** 200 % 997, 0.1 + 0.2)`,
	`#py
import time
a = time.monotonic(); time.sleep(0.02); print(time.monotonic() - a >= 0.02, abs(time.time() - time.clock_gettime(time.CLOCK_REALTIME)) < 1)`,
	`#py
b = bytearray(100 << 20)
for i in range(0, len(b), 4096): b[i] = 1
print(sum(b))`,
	`fallocate -l 100000 f; stat -c %s f`,
}

// unlike are commands that are known to do something else, and why.
var unlike = []struct{ script, why string }{
	{`uname -r`, "gVisor names the version of Linux that it models, the machine has a Linux of its own"},
	{`cat /proc/version`, "the same"},
	{`stat -f -c %T /`, "gVisor shows a file server, the machine an overlay of EROFS and ext4"},
	{`cut -d' ' -f1,3 /proc/mounts | sort`, "the mounts of the two ways to make a root"},
	{`ls /sys/class/block`, "gVisor has no block devices"},
	{`ls /sys/module | head -n 3`, "gVisor has no modules"},
	{`dmesg | head -n 1`, "gVisor prints a made-up log, the machine its kernel's"},
	{`mkfifo f; stat -c %h f`, "gVisor counts two links of a pipe with a name"},
	{`truncate -s 1G big; du -k big`, "gVisor takes a sparse file for a full one; on the host it is sparse"},
	{`touch f; chmod 6777 f; echo x >> f; stat -c %a f`, "gVisor takes the set-user-ID bit from a file that is written, even by root"},
	{`mknod n c 1 3; stat -c %F n`, "gVisor lets nobody make a device"},
}

// answer is all that can be seen of a command.
type answer struct {
	stdout, stderr string
	status         string
}

func (a answer) String() string {
	return fmt.Sprintf("%s, standard output %q, standard error %q", a.status, ends(a.stdout), ends(a.stderr))
}

func ask(ctx context.Context, b *box.Box, n int, script string) (answer, error) {
	dir := fmt.Sprintf("/work/%d", n)
	if err := b.MkdirAll(ctx, dir, 0o755); err != nil {
		return answer{}, err
	}
	argv := []string{"sh", "-c", script}
	if len(script) > 3 && script[:3] == "#py" {
		argv = []string{"python3", "-c", script}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := b.Command(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &errs
	err := cmd.Run()
	var exit *box.ExitError
	if err != nil && !errors.As(err, &exit) {
		return answer{}, err
	}
	return answer{out.String(), errs.String(), fmt.Sprint(cmd.Status())}, nil
}

// The same commands, on the same files, do the same on both engines, but for
// what is listed with its reason.
func TestEnginesAgree(t *testing.T) {
	realengine.Need(t, "gvisor")
	realengine.Need(t, "vm")
	if testing.Short() {
		t.Skip("a real image takes its time")
	}
	h := vmHome(t)
	h.ok(t, "image", "load", "-i", debianImage(t))
	boxes := map[string]*box.Box{}
	for _, engine := range []string{"gvisor", "vm"} {
		boxes[engine] = h.box(t, box.Spec{Image: "dev", Engine: engine, Hostname: "same", CPUs: 2, Memory: 512 << 20})
	}
	both := func(t *testing.T, n int, script string) (g, v answer) {
		var err error
		if g, err = ask(t.Context(), boxes["gvisor"], n, script); err != nil {
			t.Fatalf("on gvisor: %v", err)
		}
		if v, err = ask(t.Context(), boxes["vm"], n, script); err != nil {
			t.Fatalf("on vm: %v", err)
		}
		return g, v
	}
	for n, script := range alike {
		t.Run(fmt.Sprintf("alike/%d", n), func(t *testing.T) {
			if g, v := both(t, n, script); g != v {
				t.Errorf("%s\non gvisor: %v\non vm:     %v", script, g, v)
			}
		})
	}
	for n, tt := range unlike {
		t.Run(fmt.Sprintf("unlike/%d", n), func(t *testing.T) {
			if g, v := both(t, len(alike)+n, tt.script); g == v {
				t.Errorf("%s\nis the same on both now: %v; it was said to differ, since %s", tt.script, g, tt.why)
			}
		})
	}
	t.Logf("%d commands alike, %d known to differ", len(alike), len(unlike))
}
