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

// joinOptions contains the flags of berth join.
type joinOptions struct {
	server, token, hash           string
	config, kubeconfig, bootstrap string
	certDir                       string // empty: from the configuration
}

// hashFlag is the name of the flag in kubeadm join.
const hashFlag = "discovery-token-ca-cert-hash"

func joinCommand() *cobra.Command {
	var j joinOptions
	cmd := &cobra.Command{
		Use:   "join --server URL --token TOKEN --discovery-token-ca-cert-hash HASH",
		Short: "Join this host to a cluster",
		Long: `Join this host to a cluster as a node: verify the CA of the API server by its hash, write a bootstrap
kubeconfig with the token, and add it to the agent's configuration, together with the CA of the API server
as client CA (for kubectl logs and exec) and serving certificates signed by the cluster. Existing settings
of these fields are kept.

If the API server rejects the token, the command fails without writing anything.

A node can join again with the same command. If the address of the API server has changed, it is updated in
the kubeconfig. If the CA has changed, because its keys were lost or it is another cluster, the kubeconfig
and the certificates of the node are renamed with the suffix .old, and the agent requests new ones.

Nothing is changed on the API server. When the agent is restarted, it requests a client certificate, which
replaces the token, and registers the node. "berth-control token create" on the server prints the complete
command. For other Kubernetes clusters run "kubeadm token create --print-join-command": --token and
--discovery-token-ca-cert-hash have the same values here.`,
		Example: `  berth join --server https://10.0.0.1:6443 --token abcdef.0123456789abcdef \
    --discovery-token-ca-cert-hash sha256:6b1c…
  systemctl restart berth`,
		Args: cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if f := cmd.Flags(); f.Changed("ca-hash") {
				return f.Set(hashFlag, j.hash) // satisfies that the flag is required
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return j.do(cmd.Context(), cmd.OutOrStdout()) },
	}
	f := cmd.Flags()
	f.StringVar(&j.server, "server", "", "URL of the API server: https://HOST:PORT")
	f.StringVar(&j.token, "token", "", "bootstrap token")
	f.StringVar(&j.hash, hashFlag, "", "hash of the public key of the API server's CA: sha256:…")
	f.StringVar(&j.hash, "ca-hash", "", "")
	_ = f.MarkDeprecated("ca-hash", "use --"+hashFlag) // defined above
	f.StringVar(&j.config, "config", "/etc/berth/config.yaml", "configuration file of the agent, created or updated")
	f.StringVar(
		&j.kubeconfig,
		"kubeconfig",
		"/etc/berth/kubeconfig",
		"kubeconfig file that the agent writes when it has a client certificate",
	)
	f.StringVar(&j.certDir, "cert-dir", "", "directory of the agent's certificates (default: from the configuration)")
	f.StringVar(
		&j.bootstrap,
		"bootstrap-kubeconfig",
		"/etc/berth/bootstrap.kubeconfig",
		"bootstrap kubeconfig file for the token",
	)
	for _, name := range []string{"server", "token", hashFlag} {
		_ = cmd.MarkFlagRequired(name) // defined above
	}
	return cmd
}

func (j *joinOptions) do(ctx context.Context, out io.Writer) error {
	server, err := apiclient.Discover(ctx, j.server, j.hash)
	if err != nil {
		return err
	}
	if err := apiclient.CheckToken(ctx, server, j.token); err != nil {
		return fmt.Errorf("--token: %w: run berth-control token create on the server for a new join command", err)
	}
	if err := apiclient.WriteKubeconfig(
		j.bootstrap, apiclient.NewKubeconfig(server, &clientcmdapi.AuthInfo{Token: j.token}),
	); err != nil {
		return err
	}
	authority := filepath.Join(filepath.Dir(j.kubeconfig), "ca.crt")
	if err := os.WriteFile(authority, server.CAData, 0o644); err != nil {
		return fmt.Errorf("CA of the API server: %w", err)
	}
	c, err := nodeconfig.AddServer(
		j.config,
		nodeconfig.JoinSettings{Kubeconfig: j.kubeconfig, BootstrapKubeconfig: j.bootstrap, ClientCA: authority},
	)
	if err != nil {
		return err
	}
	aside, err := apiclient.Rejoin(server, j.kubeconfig, cmp.Or(j.certDir, c.CertDir))
	if err != nil {
		return err
	}
	if len(aside) > 0 {
		if _, err := fmt.Fprintf(
			out, "This node belonged to another CA. These files were renamed:\n  %s\n", strings.Join(aside, "\n  "),
		); err != nil {
			return err
		}
	}
	if c.Server.ClientCAFile == "" {
		if _, err := fmt.Fprintf(out, "Warning: the client CA in %s does not include the API server. For kubectl "+
			"logs and exec set\nauthentication.x509.clientCAFile: %s\n", j.config, authority); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(
		out,
		"%s: API server set to %s\n\nRestart the agent:\n  systemctl restart berth\nThen check the node from the "+
			"server:\n  kubectl get nodes\n",
		j.config,
		j.server,
	)
	if err == nil && isOtherServer(ctx, server, j.token) {
		_, err = fmt.Fprint(out, clusterRoleHint)
	}
	return err
}
