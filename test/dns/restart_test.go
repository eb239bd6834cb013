package dns

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"berth/test/nspawn"
)

// unit is the part of berth.service that the sockets need.
const unit = `[Unit]
StartLimitIntervalSec=0
[Service]
Type=notify
NotifyAccess=main
Environment=BERTH_TEST_DNS_ROLE=server GORACE=atexit_sleep_ms=0
ExecStart=/usr/local/bin/dnstest
Restart=always
RestartSec=1s
FileDescriptorStoreMax=32
`

// script runs a client in the background while it restarts the service several times.
const script = `set -e
BERTH_TEST_DNS_ROLE=%[1]s GORACE=atexit_sleep_ms=0 /usr/local/bin/dnstest >/tmp/%[1]s 2>&1 & client=$!
for i in 1 2 3 4 5; do
	before=$(systemctl show --value -p MainPID dnstest)
	%[2]s
	until [ "$(systemctl show --value -p MainPID dnstest)" != "$before" ] && systemctl -q is-active dnstest; do
		sleep 0.1
	done
done
kill -TERM $client
wait $client || true
cat /tmp/%[1]s`

// TestQueriesWaitWhileTheServiceRestarts: queries that arrive while no server runs are answered by the next one.
// A restart loses none. A crash loses at most the one that the server has read and not answered.
func TestQueriesWaitWhileTheServiceRestarts(t *testing.T) {
	t.Parallel()
	h, err := nspawn.Start(t.Context(), nspawn.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Stop(); err != nil {
			t.Error(err)
		}
	})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Copy(self, "/usr/local/bin/dnstest"); err != nil {
		t.Fatal(err)
	}
	if err := h.WriteFile("/etc/systemd/system/dnstest.service", unit); err != nil {
		t.Fatal(err)
	}
	run := func(line string) string {
		t.Helper()
		out, err := h.Run(t.Context(), "sh", "-c", line)
		if err != nil {
			log, _ := h.Run(t.Context(), "journalctl", "-u", "dnstest", "--no-pager", "-o", "cat", "-n", "60")
			t.Fatalf("%v\n%s\n%s", err, out, log)
		}
		return out
	}
	run("ip address add 10.96.0.10/32 dev lo && systemctl daemon-reload && systemctl start dnstest")
	const restart, kill = "systemctl restart dnstest", "systemctl kill -s KILL --kill-who=main dnstest"
	for _, c := range []struct {
		role, command string
		retries       int
	}{{"udp", restart, 0}, {"udp-retry", kill, 5}, {"tcp-retry", restart, 5}, {"tcp-retry", kill, 5}} {
		out := run(fmt.Sprintf(script, c.role, c.command))
		var answered, retried, failed int
		if _, err := fmt.Sscan(out, &answered, &retried, &failed); err != nil {
			t.Fatalf("%s, %s: %v\n%s", c.role, c.command, err, out)
		}
		t.Logf("%s, %s: %d answered, %d of them at the second attempt", c.role, c.command, answered, retried)
		if answered < 10 || retried > c.retries || failed > 0 {
			t.Errorf("%s, %s: %d answered, %d at the second attempt, %d failed", c.role, c.command, answered, retried,
				failed)
		}
	}
	log := run("journalctl -u dnstest --no-pager -o cat")
	first, later := strings.Count(log, "inherited 0\n"), strings.Count(log, "inherited 2\n")
	if first != 1 || later != 20 {
		t.Errorf("%d starts without sockets, %d with those of before\n%s", first, later, log)
	}
}
