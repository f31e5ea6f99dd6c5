package test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hutch-sandbox/hutch/box"
	"github.com/hutch-sandbox/hutch/internal/x/realengine"
)

// netVar names the folder of the test internet in the environment of the
// process that has it.
const netVar = "HUTCH_TEST_NET"

const (
	appAddr   = "93.184.216.34"    // app.test
	otherAddr = "93.184.216.35"    // other.test
	ownAddr   = "93.184.216.99"    // an address of the host itself
	sixAddr   = "2606:4700:77::34" // six.test, which has no other
	six2Addr  = "2606:4700:77::35"
	six3Addr  = "2606:4700:77::36"
	value     = "zqv-the-secret-value-0123456789"
)

// inTestInternet runs a test in a network namespace of its own, in which
// loopback is all there is: public addresses lead to this process's servers,
// the resolver is ours, and a hole in a box's gateway leads nowhere. It needs
// root, and runs the test for ordinary users too.
func inTestInternet(t *testing.T, f func(t *testing.T)) {
	realengine.Need(t, "gvisor")
	if os.Getenv(netVar) == "" && os.Getenv(asVar) == "" {
		if os.Geteuid() != 0 {
			t.Skip("a network namespace with servers on public addresses needs root")
		}
		if _, err := exec.LookPath("ip"); err != nil {
			required(t, "the ip command is missing: %v", err)
		}
		guestProgram(t) // builds it where there is a network
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), self, "-test.v", "-test.run=^"+t.Name()+"$", "-test.timeout=10m")
		cmd.Env = append(os.Environ(), netVar+"="+t.TempDir(), guestVar+"="+guestProgram(t))
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Setsid: true}
		cmd.WaitDelay = 10 * time.Second
		out, err := cmd.CombinedOutput()
		if err != nil || bytes.Contains(out, []byte("--- SKIP")) {
			t.Fatalf("in the test's internet: %v\n%s", err, out)
		}
		if testing.Verbose() {
			t.Logf("in the test's internet:\n%s", out)
		}
		return
	}
	if os.Getenv(asVar) == "" {
		makeTestInternet(t, os.Getenv(netVar))
	}
	f(t)
}

// onTestInternet runs a test there, as everyone and on every engine.
func onTestInternet(t *testing.T, f func(t *testing.T, h *home)) {
	t.Helper()
	if os.Getenv(netVar) == "" && os.Getenv(asVar) == "" {
		realengine.Need(t, "vm")
		realengine.Cache(t) // it is filled where there is a network
	}
	inTestInternet(t, func(t *testing.T) { everyEngine(t, f) })
}

// makeTestInternet sets the namespaces up and runs the servers.
func makeTestInternet(t *testing.T, dir string) {
	t.Helper()
	for _, args := range []string{
		"link set lo up", "route add local 93.184.216.0/24 dev lo", "addr add " + ownAddr + "/32 dev lo", "route add default dev lo",
		"-6 route add local 2606:4700:77::/64 dev lo", "-6 addr add 2606:4700:77::99/128 dev lo", "-6 route add default dev lo",
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", args, err, out)
		}
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	ca, cert := testAuthority(t, "app.test", "other.test", "six.test")
	for path, data := range map[string][]byte{"/etc/resolv.conf": []byte("nameserver 127.0.0.1\n"), "/etc/ssl/certs/ca-certificates.crt": ca} {
		file := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount(file, path, "", syscall.MS_BIND, ""); err != nil {
			required(t, "mount over %s: %v", path, err)
		}
	}
	serveNames(t, map[string]string{"app.test": appAddr, "other.test": otherAddr, "lan.test": "10.0.0.1", "own.test": ownAddr, "six.test": sixAddr})
	mux := http.NewServeMux()
	mux.HandleFunc("/reflect", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "real: %v\nsent: %v\n", r.Header.Get("Authorization") == "Bearer "+value, r.Header.Get("Authorization"))
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		data := make([]byte, 64<<10)
		for {
			if _, err := w.Write(data); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s says hello\n", r.Host) })
	servePackages(t, mux, dir)
	quiet := log.New(io.Discard, "", 0)
	// Addresses of IPv6 that are routed here and not the host's own.
	free := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if cerr := c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_IP, syscall.IP_FREEBIND, 1) }); cerr != nil {
			return cerr
		}
		return err
	}}
	for _, addr := range []string{appAddr, otherAddr, ownAddr, sixAddr, six2Addr, six3Addr} {
		for _, port := range []string{"80", "443"} {
			l, err := free.Listen(t.Context(), "tcp", net.JoinHostPort(addr, port))
			if err != nil {
				t.Fatal(err)
			}
			s := &http.Server{Handler: mux, ErrorLog: quiet, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}}
			t.Cleanup(func() { s.Close() })
			if port == "443" {
				go func() { _ = s.ServeTLS(l, "", "") }()
			} else {
				go func() { _ = s.Serve(l) }()
			}
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:7999")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { _ = http.Serve(l, mux) }()
}

func testAuthority(t *testing.T, names ...string) (ca []byte, leaf tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: names, NotBefore: root.NotBefore, NotAfter: root.NotAfter}
	leafDER, err := x509.CreateCertificate(rand.Reader, tmpl, root, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: key}
}

// serveNames is a resolver on 127.0.0.1 that knows a few names.
func serveNames(t *testing.T, names map[string]string) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer := answerName(buf[:n], names); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
}

// answerName answers one question of type A or AAAA; other types have no
// records.
func answerName(q []byte, names map[string]string) []byte {
	var name []string
	at := 12
	for at < len(q) && q[at] != 0 {
		end := at + 1 + int(q[at])
		if end > len(q) {
			return nil
		}
		name = append(name, strings.ToLower(string(q[at+1:end])))
		at = end
	}
	if at+5 > len(q) {
		return nil
	}
	out := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, q[12:at+5]...)
	addr, ok := names[strings.Join(name, ".")]
	ip := net.ParseIP(addr)
	switch {
	case !ok:
		out[3] = 0x83 // no such name
	case q[at+2] == 1 && ip.To4() != nil:
		out[7] = 1
		out = append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4)
		out = append(out, ip.To4()...)
	case q[at+2] == 28 && ip.To4() == nil:
		out[7] = 1
		out = append(out, 0xc0, 12, 0, 28, 0, 1, 0, 0, 0, 60, 0, 16)
		out = append(out, ip...)
	}
	return out
}

// hardened checks that the box's keeper, which carries its network, has given up
// what it needs no more.
func hardened(t *testing.T, b *box.Box) {
	t.Helper()
	info, err := b.Info(t.Context())
	if err != nil || info.Pid == 0 {
		t.Fatalf("the keeper is %d, %v", info.Pid, err)
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", info.Pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("the keeper's threads: %q, %v", tasks, err)
	}
	// To unmount, to end and look at the engine's processes, to remove files of
	// the box's users, and to publish low ports.
	const kept = 1<<21 | 1<<5 | 1<<19 | 1<<1 | 1<<3 | 1<<10
	for _, path := range tasks {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // the thread ended
		}
		got := map[string]uint64{}
		for line := range strings.Lines(string(data)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
			var n uint64
			if _, err := fmt.Sscanf(value, "%x", &n); err == nil {
				got[name] = n
			}
		}
		if got["NoNewPrivs"] != 1 || got["Seccomp"] != 2 || got["CapPrm"]&^kept != 0 || got["CapEff"]&^kept != 0 || got["CapAmb"] != 0 {
			t.Errorf("%s: NoNewPrivs %d, Seccomp %d, CapPrm %x, CapEff %x, CapAmb %x", path, got["NoNewPrivs"], got["Seccomp"], got["CapPrm"], got["CapEff"], got["CapAmb"])
		}
	}
}

// run runs the guest program in a box.
func run(t *testing.T, b *box.Box, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	res, err := b.Exec(ctx, "/guest", args...)
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return string(res.Stdout) + string(res.Stderr)
}

// trusting mounts the test's certificates where the box's programs look.
func trusting(t *testing.T, s box.Spec) box.Spec {
	s.Volumes = append(s.Volumes, guest(t), box.Volume{Host: "/etc/ssl/certs/ca-certificates.crt", Target: caTarget, ReadOnly: true})
	s.Env = append(s.Env, "SSL_CERT_FILE="+caTarget)
	return s
}

// A box without a network reaches nothing, and hears nothing.
func TestNetworkClosed(t *testing.T) {
	onTestInternet(t, func(t *testing.T, h *home) {
		rt := h.open(t)
		other := h.create(t, rt, box.Spec{Volumes: []box.Volume{guest(t)}})
		srv := other.Command(t.Context(), "/guest", "listen", "7000", "7001")
		listening(t, srv)
		b := h.create(t, rt, box.Spec{Volumes: []box.Volume{guest(t)}})
		out := run(t, b, "dial", "127.0.0.1:7999", appAddr+":443", ownAddr+":80", "169.254.77.1:80", "169.254.77.2:7000", "169.254.77.5:7999", "10.0.0.1:80", "169.254.169.254:80", "8.8.8.8:53", "[2606:4700::1]:443", "[fd48:7574:6368::1]:80")
		if strings.Contains(out, "reached") || strings.Count(out, "closed:") != 11 {
			t.Errorf("a closed box:\n%s", out)
		}
		if out := run(t, b, "lookup", "app.test", "host.hutch.internal", "x.y.z"); strings.Count(out, "[] lookup") != 3 {
			t.Errorf("names in a closed box:\n%s", out)
		}
		if out := sh(t, b, "cat /etc/resolv.conf"); !strings.Contains(out, "nameserver 169.254.77.1") {
			t.Errorf("resolv.conf: %q", out)
		}
		var denied, refused bool
		for r, err := range b.NetLog(t.Context(), box.LogOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			denied = denied || r.Kind == box.NetFlow && !r.Allowed && r.Addr == appAddr
			refused = refused || r.Kind == box.NetDNS && !r.Allowed && r.Name == "app.test."
		}
		if s, err := b.Stats(t.Context()); err != nil || s.Network.Denied < 9 || s.Network.Refused < 3 || s.Network.Allowed != 0 || !denied || !refused {
			t.Errorf("counted %+v, %v; in the log: connection %v, name %v", s.Network, err, denied, refused)
		}
	})
}

// listening starts a server in a box and waits until it listens.
func listening(t *testing.T, c *box.Cmd) {
	t.Helper()
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the server says %q, %v", line, err)
	}
}

// Names that rules open are reached and no others; rules change while the box
// runs.
func TestNetworkNames(t *testing.T) {
	onTestInternet(t, func(t *testing.T, h *home) {
		rt := h.open(t)
		b := h.create(t, rt, trusting(t, box.Spec{Network: box.Network{Allow: []string{"app.test", "lan.test", "own.test", "host.hutch.internal:7999"}}}))
		for url, want := range map[string]string{
			"https://app.test/": "200\napp.test says hello\n", "http://app.test/": "200\napp.test says hello\n",
			"http://host.hutch.internal:7999/": "200\nhost.hutch.internal:7999 says hello\n",
			"https://other.test/":              "", "http://" + appAddr + "/": "", "http://lan.test/": "", "http://own.test/": "", "http://" + ownAddr + "/": "", "http://host.hutch.internal:80/": "",
		} {
			if out := run(t, b, "fetch", url); out != want && (want != "" || strings.Contains(out, "hello")) {
				t.Errorf("%s: %q, want %q", url, out, want)
			}
		}
		hardened(t, b)
		if out := run(t, b, "fetch", "http://app.test/", "Host: x"); strings.Contains(out, "x says") {
			t.Errorf("another host was asked for: %q", out)
		}
		// A download is cut when its rule goes, and the other host is let in.
		c := b.Command(t.Context(), "/guest", "download", "http://app.test/endless")
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(out)
		if line, err := r.ReadString('\n'); line != "started\n" {
			t.Fatalf("the download says %q, %v", line, err)
		}
		if err := b.SetNetwork(t.Context(), box.Network{Allow: []string{"other.test"}}); err != nil {
			t.Fatal(err)
		}
		if line, err := r.ReadString('\n'); !strings.HasPrefix(line, "ended:") {
			t.Errorf("the download says %q, %v", line, err)
		}
		_ = c.Wait()
		if out := run(t, b, "fetch", "https://other.test/"); out != "200\nother.test says hello\n" {
			t.Errorf("the new host: %q", out)
		}
		if out := run(t, b, "fetch", "https://app.test/"); strings.Contains(out, "hello") {
			t.Errorf("the old host: %q", out)
		}
		// It is so after a restart, too.
		if err := b.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if n, err := b.Network(t.Context()); err != nil || n.String() != "allow other.test" {
			t.Errorf("after the stop: %v, %v", n, err)
		}
		if out := run(t, b, "fetch", "https://other.test/"); out != "200\nother.test says hello\n" {
			t.Errorf("after the restart: %q", out)
		}
		if err := b.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if err := b.SetNetwork(t.Context(), box.Network{}); err != nil {
			t.Fatal(err)
		}
		if out := run(t, b, "fetch", "https://other.test/"); strings.Contains(out, "hello") {
			t.Errorf("closed while it was stopped: %q", out)
		}
	})
}

// Names and addresses of IPv6 are as those of IPv4.
func TestNetworkIPv6(t *testing.T) {
	onTestInternet(t, func(t *testing.T, h *home) {
		rt := h.open(t)
		b := h.create(t, rt, trusting(t, box.Spec{Network: box.Network{Allow: []string{"six.test", "[" + six2Addr + "]:80"}}}))
		if out := run(t, b, "lookup", "six.test"); !strings.Contains(out, "["+sixAddr+"]") {
			t.Errorf("the name: %q", out)
		}
		for url, want := range map[string]string{
			"https://six.test/": "200\nsix.test says hello\n", "http://six.test/": "200\nsix.test says hello\n",
			"http://[" + six2Addr + "]/": "200\n[" + six2Addr + "] says hello\n",
			// Another port, another address, one of the name without the name,
			// the host's own, loopback, and IPv4 in other clothes.
			"https://[" + six2Addr + "]/": "", "http://[" + six3Addr + "]/": "", "http://[" + sixAddr + "]/": "", "http://[2606:4700:77::99]/": "",
			"http://[::1]:7999/": "", "http://[::ffff:93.184.216.34]/": "", "http://[64:ff9b::5db8:d822]/": "",
		} {
			if out := run(t, b, "fetch", url); out != want && (want != "" || strings.Contains(out, "hello")) {
				t.Errorf("%s: %q, want %q", url, out, want)
			}
		}
		all := h.create(t, rt, trusting(t, box.Spec{Network: box.Network{Preset: box.NetInternet}}))
		for url, want := range map[string]string{
			"http://[" + six3Addr + "]/": "200\n[" + six3Addr + "] says hello\n", "https://six.test/": "200\nsix.test says hello\n",
			"http://[2606:4700:77::99]/": "", "http://[::1]:7999/": "", "http://[fd00::1]/": "", "http://[fe80::1]/": "",
		} {
			if out := run(t, all, "fetch", url); out != want && (want != "" || strings.Contains(out, "hello")) {
				t.Errorf("with the internet, %s: %q, want %q", url, out, want)
			}
		}
	})
}

// The box uses a secret that it never has.
func TestNetworkSecret(t *testing.T) {
	onTestInternet(t, func(t *testing.T, h *home) {
		rt := h.open(t)
		// The box trusts the test's servers by its own bundle, as in an image.
		b := h.create(t, rt, box.Spec{
			Volumes: []box.Volume{guest(t)},
			Network: box.Network{Allow: []string{"app.test", "other.test"}},
			Secrets: []box.Secret{{Name: "TOKEN", Value: value, Hosts: []string{"app.test"}}},
		})
		out := run(t, b, "fetch", "https://app.test/reflect", "Authorization:Bearer ${TOKEN}")
		if !strings.HasPrefix(out, "200\nreal: true\nsent: Bearer hutch-secret-") {
			t.Errorf("the server with the secret: %q", out)
		}
		if out := run(t, b, "fetch", "https://other.test/reflect", "Authorization:Bearer ${TOKEN}"); strings.Contains(out, "200") {
			t.Errorf("a server that the box has no certificate for: %q", out)
		}
		// A machine's memory has all that is in it; the search from within
		// would bring the value there itself.
		if h.engine == "vm" {
			machineLacks(t, b, value)
		} else if out := run(t, b, "search", mask(value)); strings.Contains(out, "found") {
			t.Errorf("the value is in the box: %q", out)
		}
		sh(t, b, `test -n "$SSL_CERT_FILE" && test -s "$SSL_CERT_FILE" && test -s "$NODE_EXTRA_CA_CERTS" && test -n "$REQUESTS_CA_BUNDLE"`)
		info, err := b.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if text := fmt.Sprintf("%+v", info); strings.Contains(text, value) {
			t.Errorf("the value is in %s", text)
		}
		noValue := func(root string) {
			t.Helper()
			_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
				// The disk is searched from within the box; images of disks are
				// sparse and huge. So is what a machine's memory was at its start.
				if err != nil || !d.Type().IsRegular() || slices.Contains([]string{".img", ".ext4"}, filepath.Ext(d.Name())) || d.Name() == "ram" {
					return nil
				}
				if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(value)) {
					t.Errorf("the value is in %s", path)
				}
				return nil
			})
		}
		noValue(h.dir)
		for _, file := range []string{"cmdline", "environ"} {
			procs, _ := filepath.Glob("/proc/[0-9]*/" + file)
			for _, path := range procs {
				if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(value)) {
					t.Errorf("the value is in %s", path)
				}
			}
		}
		// A program that does not have it starts the box without it.
		if err := b.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if err := rt.Close(); err != nil {
			t.Fatal(err)
		}
		rt2 := h.open(t)
		b2, err := rt2.Get(t.Context(), b.ID())
		if err != nil {
			t.Fatal(err)
		}
		if out := run(t, b2, "fetch", "https://app.test/reflect", "Authorization:Bearer ${TOKEN}"); !strings.HasPrefix(out, "403") || !strings.Contains(out, "TOKEN") {
			t.Errorf("without the value: %q", out)
		}
		if err := b2.SetSecrets(t.Context(), map[string]string{"TOKEN": value}); err != nil {
			t.Fatal(err)
		}
		if out := run(t, b2, "fetch", "https://app.test/reflect", "Authorization:Bearer ${TOKEN}"); !strings.HasPrefix(out, "200\nreal: true") {
			t.Errorf("with the value again: %q", out)
		}
		noValue(h.dir)
	})
}

// machineLacks fails when the value is in the memory of the box's QEMU, which has
// the machine's.
func machineLacks(t *testing.T, b *box.Box, value string) {
	t.Helper()
	info, err := b.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", info.Pid))
	if err != nil {
		t.Fatal(err)
	}
	searched := 0
	for _, path := range children {
		pids, _ := os.ReadFile(path)
		for _, pid := range strings.Fields(string(pids)) {
			if args, _ := os.ReadFile("/proc/" + pid + "/cmdline"); !bytes.HasPrefix(args, []byte("qemu-system")) {
				continue
			}
			searched++
			if n := memoryHas(t, pid, value, "hutch-secret-"); n[0] > 0 || n[1] == 0 {
				t.Errorf("in the machine's memory the value is %d times, its placeholder %d times", n[0], n[1])
			}
		}
	}
	if searched != 1 {
		t.Errorf("the box has %d machines", searched)
	}
}

// memoryHas counts words in what a process can write to.
func memoryHas(t *testing.T, pid string, words ...string) []int {
	t.Helper()
	maps, err := os.ReadFile("/proc/" + pid + "/maps")
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open("/proc/" + pid + "/mem")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	counts := make([]int, len(words))
	buf := make([]byte, 4<<20)
	for line := range strings.Lines(string(maps)) {
		var start, end int64
		var perms string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &start, &end, &perms); err != nil || !strings.HasPrefix(perms, "rw") {
			continue
		}
		for at := start; at < end; {
			n, err := mem.ReadAt(buf[:min(int64(len(buf)), end-at)], at)
			for i, w := range words {
				counts[i] += bytes.Count(buf[:n], []byte(w))
			}
			if err != nil || at+int64(n) == end {
				break
			}
			at += int64(n) - 64 // a word may lie across
		}
	}
	return counts
}

// Published ports, forwarded ones, and links between boxes.
func TestNetworkPorts(t *testing.T) {
	onTestInternet(t, func(t *testing.T, h *home) {
		rt := h.open(t)
		b := h.create(t, rt, box.Spec{Name: "srv", Volumes: []box.Volume{guest(t)}, Ports: []box.Port{{Box: 7000}, {Box: 7001, Proto: "udp"}}})
		listening(t, b.Command(t.Context(), "/guest", "listen", "7000", "7001"))
		ports, err := b.Ports(t.Context())
		if err != nil || len(ports) != 2 || ports[0].Host == 0 {
			t.Fatalf("the ports are %v, %v", ports, err)
		}
		for range 1000 {
			if err := echoed("tcp", ports[0].HostAddr()); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() {
				if err := echoed("tcp", ports[0].HostAddr()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if err := echoed("udp", ports[1].HostAddr()); err != nil {
			t.Error(err)
		}
		hardened(t, b)
		// A connection to a paused box waits for it, as commands do.
		if err := b.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		waited := make(chan error, 1)
		go func() { waited <- echoed("tcp", ports[0].HostAddr()) }()
		if err := b.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-waited; err != nil {
			t.Errorf("a connection to a paused box: %v", err)
		}
		added, err := b.Publish(t.Context(), box.Port{Box: 7000})
		if err != nil {
			t.Fatal(err)
		}
		if err := echoed("tcp", added.HostAddr()); err != nil {
			t.Error(err)
		}
		if err := b.Unpublish(t.Context(), added); err != nil {
			t.Fatal(err)
		}
		if err := echoed("tcp", added.HostAddr()); err == nil {
			t.Error("the port is open after it was taken away")
		}
		if _, err := b.Publish(t.Context(), box.Port{Host: ports[0].Host, Box: 1}); box.KindOf(err) != box.Exists || box.HintOf(err) == "" {
			t.Errorf("a port that is taken: %v", err)
		}
		if !root() {
			if _, err := b.Publish(t.Context(), box.Port{Host: 81, Box: 1}); box.KindOf(err) != box.Permission || box.HintOf(err) == "" {
				t.Errorf("a privileged port: %v", err)
			}
		}
		taken := h.create(t, rt, box.Spec{Ports: []box.Port{{Host: ports[0].Host, Box: 1}}})
		if err := taken.Start(t.Context()); box.KindOf(err) != box.Exists {
			t.Errorf("a box whose port is taken starts: %v", err)
		}

		linked := h.create(t, rt, box.Spec{Volumes: []box.Volume{guest(t)}, Links: []box.Link{{Name: "db", Box: "srv", Port: 7000}}})
		if out := run(t, linked, "dial", "db:7000", "db:7001", "db:22"); !strings.Contains(out, "db:7000 reached") || strings.Count(out, "reached") != 1 {
			t.Errorf("the link:\n%s", out)
		}
	})
}

// echoed sends and receives through an echo server.
func echoed(network, addr string) error {
	c, err := net.Dial(network, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := c.Write([]byte("hello")); err != nil {
		return err
	}
	buf := make([]byte, 5)
	if _, err := io.ReadFull(c, buf); err != nil {
		return err
	}
	if string(buf) != "hello" {
		return fmt.Errorf("%q came back", buf)
	}
	return nil
}
