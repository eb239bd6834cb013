package systemd

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// udpSocket opens a socket on loopback.
func udpSocket(t *testing.T) (*net.UDPConn, *os.File) {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	f, err := conn.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); f.Close() })
	return conn, f
}

// TestSocketsAreStored receives what the service manager would.
func TestSocketsAreStored(t *testing.T) {
	receive := receivedFiles(t, filepath.Join(t.TempDir(), "notify"))
	expect := func(want string, files int) {
		t.Helper()
		text, got := receive()
		closeAll(got)
		if text != want || len(got) != files {
			t.Errorf("got %q with %d files, want %q with %d", text, len(got), want, files)
		}
	}
	_, f := udpSocket(t)
	s := &Sockets{name: "berth-dns"}
	if err := s.Keep([]*os.File{f}); err != nil {
		t.Fatal(err)
	}
	expect("FDSTOREREMOVE=1\nFDNAME=berth-dns", 0)
	expect("FDSTORE=1\nFDNAME=berth-dns", 1)
	if err := s.Keep([]*os.File{f}); err != nil { // the same socket is never removed
		t.Fatal(err)
	}
	expect("FDSTORE=1\nFDNAME=berth-dns", 1)
	_, other := udpSocket(t)
	if err := s.Keep([]*os.File{other}); err != nil {
		t.Fatal(err)
	}
	expect("FDSTOREREMOVE=1\nFDNAME=berth-dns", 0)
	expect("FDSTORE=1\nFDNAME=berth-dns", 1)
	if err := s.Keep(nil); err != nil {
		t.Fatal(err)
	}
	expect("FDSTOREREMOVE=1\nFDNAME=berth-dns", 0)
}

// TestSocketsSurviveReplacement passes a socket with a waiting datagram to another program.
func TestSocketsSurviveReplacement(t *testing.T) {
	if os.Getenv(socketsVariable) != "" { // the other program
		s := InheritSockets("berth-dns")
		for _, f := range s.Files() {
			conn, err := net.FilePacketConn(f)
			if err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 64)
			n, _, err := conn.ReadFrom(buf)
			fmt.Printf("received %q %v, variable %q\n", buf[:n], err, os.Getenv(socketsVariable))
		}
		return
	}
	conn, f := udpSocket(t)
	s := &Sockets{name: "berth-dns"}
	if err := s.Keep([]*os.File{f}); err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("udp4", conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn.Close()
	f.Close()
	if _, err := client.Write([]byte("query")); err != nil {
		t.Fatal(err)
	}
	t.Setenv(socketsVariable, "")
	if err := s.PassOn(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestSocketsSurviveReplacement$")
	cmd.ExtraFiles = s.Files()
	cmd.Env = append(os.Environ(), socketsVariable+"=3")
	out, err := cmd.CombinedOutput()
	closeAll(cmd.ExtraFiles)
	if err != nil || !strings.Contains(string(out), `received "query" <nil>, variable ""`) {
		t.Errorf("%v: %s", err, out)
	}
	if got := os.Getenv(socketsVariable); got == "" {
		t.Error("PassOn sets no variable")
	}
	if err := s.Keep(nil); err != nil {
		t.Fatal(err)
	}
}
