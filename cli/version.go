package cli

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"berth/nodeapi"

	"github.com/spf13/cobra"
)

// versions is the output of version -o json.
type versions struct {
	Client nodeapi.Version  `json:"client"`
	Agent  *nodeapi.Version `json:"agent,omitempty"`
}

// version prints the client version, which is that of the root command, even if the agent cannot be
// reached.
func (c *factory) version() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the client and agent versions",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, "json", "yaml"); err != nil {
				return err
			}
			v := versions{Client: clientVersion(cmd.Root().Version)}
			askErr := c.fetchAgentVersion(cmd, &v)
			var err error
			if format != "" {
				err = encode(cmd.OutOrStdout(), format, v)
			} else {
				err = writeVersions(cmd.OutOrStdout(), v)
			}
			return errors.Join(err, askErr)
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "output format: json or yaml")
	return cmd
}

func (c *factory) fetchAgentVersion(cmd *cobra.Command, v *versions) error {
	client, err := c.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	agent, err := client.Version(cmd.Context())
	if err != nil {
		return err
	}
	v.Agent = &agent
	return nil
}

func clientVersion(version string) nodeapi.Version {
	v := nodeapi.Version{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if v.Version == "" {
		v.Version = build.Main.Version
	}
	for _, s := range build.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	for _, m := range build.Deps {
		if m.Path == "k8s.io/api" {
			v.Kubernetes = kubernetesRelease(m.Version)
		}
	}
	return v
}

// kubernetesRelease is the Kubernetes release of an API module version such as v0.37.2. The agent
// uses the same format.
func kubernetesRelease(module string) string {
	if minor, ok := strings.CutPrefix(module, "v0."); ok {
		return "v1." + minor
	}
	return module
}

func writeVersions(w io.Writer, v versions) error {
	text := "Client: " + versionLine(v.Client) + "\n"
	if v.Agent != nil {
		text += "Agent:  " + versionLine(*v.Agent) + "\n"
		if v.Agent.Runtime != "" {
			text += "Runtime: " + clean(v.Agent.Runtime)
			if v.Agent.CRI != "" {
				text += ", CRI " + clean(v.Agent.CRI)
			}
			text += "\n"
		}
	}
	_, err := io.WriteString(w, text)
	return err
}

func versionLine(v nodeapi.Version) string {
	text := "berth " + orNone(v.Version)
	if v.Commit != "" {
		text += fmt.Sprintf(" (%.12s)", v.Commit)
	}
	if v.Kubernetes != "" {
		text += ", Kubernetes " + v.Kubernetes
	}
	return clean(text + ", " + v.Go + ", " + v.Platform)
}
