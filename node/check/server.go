package check

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

// Server checks the API server of the cluster. Only the check of the node name is essential,
// because existing pods keep running without an API server.
type Server struct {
	Config   *nodeconfig.Config
	Identity *apiclient.Identity
	Serving  *apiclient.Certificate // nil: not signed by the cluster
	Now      time.Time
}

// newServer returns the checks for a node whose agent is not running, or nil for a standalone node.
func newServer(c *nodeconfig.Config, version string) (*Server, error) {
	if c.Kubeconfig == "" && c.BootstrapKubeconfig == "" {
		return nil, nil
	}
	id, err := apiclient.NewIdentity(apiclient.IdentityOptions{
		NodeName: c.NodeName, MachineID: node.SystemInfo().MachineID, Kubeconfig: c.Kubeconfig,
		Bootstrap: c.BootstrapKubeconfig, CertDir: c.CertDir,
		UserAgent: "berth/" + version, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	s := &Server{Config: c, Identity: id, Now: time.Now()}
	if c.Server.ServerTLSBootstrap {
		s.Serving = id.ServingCertificate(nil)
	}
	return s, nil
}

const rejoin = "join again with the command that berth-control token create prints"

// Check runs the checks.
func (s *Server) Check(ctx context.Context, add AddFunc) {
	result := s.Identity.CheckServer(ctx)
	add(
		"server",
		false,
		result.Err,
		result.Server,
		"start the API server, or check the connection to it (address, route, firewall); existing pods keep running",
	)
	if result.Err == nil {
		detail := ""
		if result.TrustErr == nil {
			detail = apiclient.CAHash(result.CA) + " until " + day(result.CA.NotAfter)
		}
		add(
			"server authority",
			false,
			result.TrustErr,
			detail,
			"if the cluster was recreated, "+rejoin+"; if the serving certificate has expired or lacks this address, "+
				"renew it on the server (--advertise-address)",
		)
	}
	if result.HasDate {
		var err error
		if result.ClockSkew.Abs() > maxClockSkew {
			err = fmt.Errorf("the clock of this host is %s the clock of the API server", skewText(result.ClockSkew))
		}
		add(
			"server clock",
			false,
			err,
			"in sync with this host",
			"run chrony or systemd-timesyncd on both hosts: leases, tokens and certificates depend on the clock",
		)
	}
	s.certificates(add)
	if result.Err == nil && result.TrustErr == nil {
		s.checkName(ctx, add)
	}
}

// maxClockSkew is tolerated by leases and tokens.
const maxClockSkew = 5 * time.Second

func skewText(d time.Duration) string {
	if d < 0 {
		return (-d).Round(time.Second).String() + " behind"
	}
	return d.Round(time.Second).String() + " ahead of"
}

func (s *Server) certificates(add AddFunc) {
	leaf, err := s.Identity.Leaf()
	if err != nil || leaf != nil {
		detail, bad := s.validity(leaf, err)
		add(
			"client certificate",
			false,
			bad,
			detail,
			"run kubectl get csr to see pending or denied requests; if the token is used or expired, "+rejoin,
		)
	}
	switch c := s.Config.Server; {
	case !c.Enabled:
	case s.Serving != nil:
		detail, bad := s.validity(s.Serving.Leaf())
		add(
			"serving certificate",
			false,
			bad,
			detail,
			"run kubectl get csr, and kubectl certificate approve for pending requests: kubectl logs and exec do not "+
				"work on this node until then",
		)
	case c.CertFile != "":
		detail, bad := s.validity(leafOf(c.CertFile))
		add(
			"serving certificate",
			false,
			bad,
			detail,
			"renew "+c.CertFile+" (tlsCertFile), or set serverTLSBootstrap: true instead",
		)
	}
}

// validity returns an error for a certificate that is not valid, or whose renewal is overdue:
// renewal starts when at most a third of the lifetime is left.
func (s *Server) validity(leaf *x509.Certificate, err error) (string, error) {
	if err != nil {
		return "", err
	}
	until := "until " + leaf.NotAfter.UTC().Format(time.RFC3339)
	switch left, lifetime := leaf.NotAfter.Sub(s.Now), leaf.NotAfter.Sub(leaf.NotBefore); {
	case left <= 0:
		return "", errors.New("expired: it was valid " + until)
	case s.Now.Before(leaf.NotBefore):
		return "", errors.New("not yet valid: from " + leaf.NotBefore.UTC().Format(time.RFC3339))
	case left < lifetime/20:
		return "", errors.New("not renewed and about to expire: valid " + until)
	}
	return "valid " + until, nil
}

func leafOf(path string) (*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return apiclient.ParseFirstCertificate(path, text)
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }

// checkName checks whether another host uses the same node name. If the API server does not reveal
// that, the remedy points to the relevant check.
func (s *Server) checkName(ctx context.Context, add AddFunc) {
	installation, _ := os.ReadFile(filepath.Join(s.Config.StateDir, node.InstallationFile)) // not created yet
	alive, err := registration.CheckNameConflict(
		ctx,
		s.Identity.Client,
		s.Config.NodeName,
		strings.TrimSpace(string(installation)),
		node.SystemInfo().MachineID,
	)
	remedy := "set another name with --hostname-override or, if this host replaces the other one, stop berth " +
		"there first"
	switch {
	case alive != nil:
		add("node name", true, alive, "", remedy)
	case err == nil:
		add("node name", true, nil, s.Config.NodeName+": used by this node", "")
	case apierrors.IsNotFound(err):
		add("node name", true, nil, s.Config.NodeName+": available", "")
	default:
		add(
			"node name",
			false,
			fmt.Errorf("%s: no access to the Node: %w", s.Config.NodeName, err),
			"",
			"see the check of the client certificate",
		)
	}
}
