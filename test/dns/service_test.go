package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"berth/services"
	agentdns "berth/services/dns"
	"berth/systemd"
)

const (
	// roleEnv is the environment variable with the role of this process: server or client.
	roleEnv = "BERTH_TEST_DNS_ROLE"
	// address is that of the server, on the loopback interface of the host like a clusterDNS address.
	address = "10.96.0.10:53"
	// storeName is the name of the sockets in the file descriptor store.
	storeName = "dns"
	queryName = "web.ns.svc.cluster.local."
)

func TestMain(m *testing.M) {
	var err error
	switch role := os.Getenv(roleEnv); role {
	case "":
		os.Exit(m.Run())
	case "server":
		err = runServer()
	default:
		err = runClient(role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runServer is the service: it takes the sockets that systemd holds, or opens and stores them.
func runServer() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	notifier, err := systemd.ClaimNotifySocket()
	if err != nil {
		return err
	}
	inherited := systemd.InheritedFiles()[storeName]
	fmt.Println("inherited", len(inherited))
	sockets, err := agentdns.Open([]netip.AddrPort{netip.MustParseAddrPort(address)}, inherited)
	if err != nil {
		return err
	}
	files, err := sockets.Files()
	if err != nil {
		return err
	}
	if err := notifier.StoreFiles(storeName, files...); err != nil {
		return err
	}
	for _, f := range files {
		if err := f.Close(); err != nil {
			return err
		}
	}
	store := services.NewStore()
	store.ReplaceSlices(nil)
	store.ReplaceServices([]*services.Service{{Name: services.Name{Namespace: "ns", Name: "web"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.80")}}})
	server := agentdns.NewServer(agentdns.Options{Domain: "cluster.local", Store: store,
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	defer server.Close()
	if err := notifier.Notify(systemd.Ready); err != nil {
		return err
	}
	return server.Serve(ctx, sockets)
}

// attempts are how long the client waits for an answer: longer than a restart on a busy machine, unless a
// query may be lost.
var attempts = map[string]time.Duration{"udp": time.Minute, "udp-retry": 10 * time.Second, "tcp-retry": time.Minute}

// runClient sends one query after another until SIGTERM, and prints how many were answered, how many at the
// second attempt only, and how many not at all. The role is the network, with -retry if a query has two
// attempts.
func runClient(role string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client := dns.Client{Net: role[:3], Timeout: attempts[role]}
	answered, retried, failed := 0, 0, 0
	for ; ctx.Err() == nil; answered++ {
		err := ask(&client)
		if err != nil && len(role) > 3 {
			retried++
			err = ask(&client)
		}
		if err != nil {
			failed++
			fmt.Fprintln(os.Stderr, err)
		}
	}
	_, err := fmt.Println(answered-failed, retried, failed)
	return err
}

func ask(client *dns.Client) error {
	m := &dns.Msg{}
	m.SetQuestion(queryName, dns.TypeA)
	a, _, err := client.Exchange(m, address)
	if err == nil && len(a.Answer) != 1 {
		err = fmt.Errorf("answer %v", a)
	}
	return err
}
