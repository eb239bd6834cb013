package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"berth/internal/apiclient"
	"berth/internal/nodeconfig"
)

// joining is what berth join is told.
type joining struct {
	server, token, hash           string
	config, kubeconfig, bootstrap string
	certDir                       string // empty: as the configuration says
}

func joinCommand() *cobra.Command {
	var j joining
	cmd := &cobra.Command{
		Use:   "join --server URL --token TOKEN --ca-hash HASH",
		Short: "Make this host a node of a control server",
		Long: `Make this host a node of a control server: find the server's certificate
authority by its hash, write a kubeconfig that asks for the node's own certificate
with the token, and name it in the agent's configuration, with the authority whose
clients (the server, for kubectl logs and exec) the node lets in, and that it asks
for the certificate which it shows them. What is said there of these stays.

Where the server does not take the token, that is said and nothing is written.

A node that has joined before joins again by the same line: where the server has
another address, that is written into the kubeconfig which is there. Where it has
another authority (its keys were lost, or it is another server), that kubeconfig
and the node's certificates are put aside under their names and .old, and the
agent asks for others.

It changes nothing on the server. The agent does the rest when it is started: it
asks for a certificate, which takes the place of the token, and registers the
node. On the server "berth-control token create" prints the whole command; on
other Kubernetes servers use kubeadm token create --print-join-command and give
--discovery-token-ca-cert-hash as --ca-hash.`,
		Example: `  berth join --server https://10.0.0.1:6443 --token abcdef.0123456789abcdef --ca-hash sha256:6b1c…
  systemctl restart berth`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return j.do(cmd.Context(), cmd.OutOrStdout()) },
	}
	f := cmd.Flags()
	f.StringVar(&j.server, "server", "", "address of the server: https://HOST:PORT")
	f.StringVar(&j.token, "token", "", "bootstrap token")
	f.StringVar(&j.hash, "ca-hash", "", "hash of the server's certificate authority: sha256:…")
	f.StringVar(&j.config, "config", "/etc/berth/config.yaml", "the agent's configuration, which is made or added to")
	f.StringVar(&j.kubeconfig, "kubeconfig", "/etc/berth/kubeconfig", "file that the agent writes when it has its certificate")
	f.StringVar(&j.certDir, "cert-dir", "", "directory of the agent's certificates; default: as the configuration says")
	f.StringVar(&j.bootstrap, "bootstrap-kubeconfig", "/etc/berth/bootstrap.kubeconfig", "file to write the token into")
	for _, name := range []string{"server", "token", "ca-hash"} {
		_ = cmd.MarkFlagRequired(name) // it is defined above
	}
	return cmd
}

func (j *joining) do(ctx context.Context, out io.Writer) error {
	server, err := apiclient.Discover(ctx, j.server, j.hash)
	if err != nil {
		return err
	}
	if err := apiclient.CheckToken(ctx, server, j.token); err != nil {
		return fmt.Errorf("--token: %w: berth-control token create, on the server, prints the line with another", err)
	}
	if err := apiclient.WriteKubeconfig(j.bootstrap, apiclient.NewKubeconfig(server, &clientcmdapi.AuthInfo{Token: j.token})); err != nil {
		return err
	}
	authority := filepath.Join(filepath.Dir(j.kubeconfig), "ca.crt")
	if err := os.WriteFile(authority, server.CAData, 0o644); err != nil {
		return fmt.Errorf("authority of the server: %w", err)
	}
	c, err := nodeconfig.AddServer(j.config, nodeconfig.JoinSettings{Kubeconfig: j.kubeconfig, BootstrapKubeconfig: j.bootstrap, ClientCA: authority})
	if err != nil {
		return err
	}
	aside, err := apiclient.Rejoin(server, j.kubeconfig, cmp.Or(j.certDir, c.CertDir))
	if err != nil {
		return err
	}
	if len(aside) > 0 {
		if _, err := fmt.Fprintf(out, "This node was another authority's. What it had of that is put aside:\n  %s\n", strings.Join(aside, "\n  ")); err != nil {
			return err
		}
	}
	if c.Server.ClientCAFile == "" {
		if _, err := fmt.Fprintf(out, "%s says who may speak to this node, and that is not the server: for kubectl logs and exec add\nauthentication.x509.clientCAFile: %s\n", j.config, authority); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, "%s now names %s as this node's server.\nStart the agent anew: systemctl restart berth\nThen, on the server: kubectl get nodes\n", j.config, j.server)
	return err
}
