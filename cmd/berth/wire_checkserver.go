package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth/internal/apiclient"
	"berth/internal/nodeconfig"
	"berth/node"
	"berth/node/registration"
)

// serverChecks look at the server that the node has joined. None is essential but
// that of the node's name: the pods that are here go on without a server.
type serverChecks struct {
	config   *nodeconfig.Config
	identity *apiclient.Identity
	serving  *apiclient.Certificate // nil: not asked for from the server
	now      time.Time
}

// servers are the checks of a node that is not running; nil: it has not joined.
func servers(c *nodeconfig.Config) (*serverChecks, error) {
	if c.Kubeconfig == "" && c.BootstrapKubeconfig == "" {
		return nil, nil
	}
	id, err := apiclient.NewIdentity(apiclient.IdentityOptions{
		NodeName: c.NodeName, MachineID: node.SystemInfo().MachineID, Kubeconfig: c.Kubeconfig, Bootstrap: c.BootstrapKubeconfig, CertDir: c.CertDir,
		UserAgent: "berth/" + version, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	s := &serverChecks{config: c, identity: id, now: time.Now()}
	if c.Server.ServerTLSBootstrap {
		s.serving = id.ServingCertificate(nil)
	}
	return s, nil
}

const rejoin = "join again with the line that berth-control token create prints"

func (s *serverChecks) check(ctx context.Context, add addItem) {
	sight := s.identity.CheckServer(ctx)
	add("server", false, sight.Err, sight.Server, "start the server, or open the way to it (address, route, firewall); the pods that are here go on meanwhile")
	if sight.Err == nil {
		detail := ""
		if sight.TrustErr == nil {
			detail = apiclient.CAHash(sight.CA) + " until " + day(sight.CA.NotAfter)
		}
		add("server authority", false, sight.TrustErr, detail,
			"if the server was made anew, "+rejoin+"; if only its certificate is old or for other addresses, renew that on the server (--advertise-address)")
	}
	if sight.HasDate {
		var err error
		if sight.ClockSkew.Abs() > clockApart {
			err = fmt.Errorf("this host's clock is %s of the server's", ahead(sight.ClockSkew))
		}
		add("server clock", false, err, "as this host's, to a few seconds", "run chrony or systemd-timesyncd on both: leases, tokens and certificates go by the clock")
	}
	s.certificates(add)
	if sight.Err == nil && sight.TrustErr == nil {
		s.name(ctx, add)
	}
}

// clockApart is what a lease and a token bear.
const clockApart = 5 * time.Second

func ahead(d time.Duration) string {
	if d < 0 {
		return (-d).Round(time.Second).String() + " behind that"
	}
	return d.Round(time.Second).String() + " ahead"
}

func (s *serverChecks) certificates(add addItem) {
	leaf, err := s.identity.Leaf()
	if err != nil || leaf != nil {
		detail, bad := s.good(leaf, err)
		add("client certificate", false, bad, detail, "kubectl get csr shows whether a request waits or was denied; if the token is used or expired, "+rejoin)
	}
	switch c := s.config.Server; {
	case !c.Enabled:
	case s.serving != nil:
		detail, bad := s.good(s.serving.Leaf())
		add("serving certificate", false, bad, detail, "kubectl get csr, and kubectl certificate approve what waits: until then kubectl logs and exec do not reach this node")
	case c.CertFile != "":
		detail, bad := s.good(leafOf(c.CertFile))
		add("serving certificate", false, bad, detail, "renew "+c.CertFile+" (tlsCertFile), or set serverTLSBootstrap: true instead")
	}
}

// good judges a certificate: it has not expired, and is not late with its renewal,
// which begins when at most a third of its time is left.
func (s *serverChecks) good(leaf *x509.Certificate, err error) (string, error) {
	if err != nil {
		return "", err
	}
	until := "until " + leaf.NotAfter.UTC().Format(time.RFC3339)
	switch left, life := leaf.NotAfter.Sub(s.now), leaf.NotAfter.Sub(leaf.NotBefore); {
	case left <= 0:
		return "", errors.New("expired: it was good " + until)
	case s.now.Before(leaf.NotBefore):
		return "", errors.New("not good yet: from " + leaf.NotBefore.UTC().Format(time.RFC3339))
	case left < life/20:
		return "", errors.New("it expires soon and was not renewed: good " + until)
	}
	return "good " + until, nil
}

func leafOf(path string) (*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return apiclient.ParseFirstCertificate(path, text)
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }

// name looks for another machine of the same name. What the server does not tell
// is said where it is to be looked for.
func (s *serverChecks) name(ctx context.Context, add addItem) {
	mark, _ := os.ReadFile(filepath.Join(s.config.StateDir, node.InstallationFile)) // none: it was never started
	alive, err := registration.CheckNameConflict(ctx, s.identity.Client, s.config.NodeName, strings.TrimSpace(string(mark)), node.SystemInfo().MachineID)
	remedy := "give this one another name with --hostname-override, or, if it takes the other's place, stop berth there first"
	switch {
	case alive != nil:
		add("node name", true, alive, "", remedy)
	case err == nil:
		add("node name", true, nil, s.config.NodeName+": this node's own", "")
	case apierrors.IsNotFound(err):
		add("node name", true, nil, s.config.NodeName+": free", "")
	default:
		add("node name", false, fmt.Errorf("%s: the server does not tell this node: %w", s.config.NodeName, err), "", "see client certificate")
	}
}
