// Command health evaluates health checks as Argo CD (Lua) and Flux (CEL) do.
//
// It reads {"lua": script, "expressions": {"current", "inProgress", "failed"}, "objects": [...]} from stdin and prints
// one {"argocd": {"status", "message"} | {"error"}, "flux": status, "fluxError": text} per object.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type request struct {
	Lua         string                           `json:"lua"`
	Expressions kustomize.HealthCheckExpressions `json:"expressions"`
	Objects     []json.RawMessage                `json:"objects"`
}

type answer struct {
	ArgoCD    map[string]string `json:"argocd"`
	Flux      string            `json:"flux"`
	FluxError string            `json:"fluxError,omitempty"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var asked request
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return err
	}
	evaluator, err := cel.NewStatusEvaluator(&asked.Expressions)
	if err != nil {
		return err
	}
	answers := make([]answer, 0, len(asked.Objects))
	for _, raw := range asked.Objects {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw); err != nil { // integers stay int64, as they are in Flux
			return err
		}
		found := answer{ArgoCD: argoHealth(asked.Lua, object.Object)}
		result, err := evaluator.Evaluate(context.Background(), object)
		if err != nil {
			found.FluxError = err.Error()
		} else {
			found.Flux = string(result.Status)
		}
		answers = append(answers, found)
	}
	return json.NewEncoder(os.Stdout).Encode(answers)
}

// argoHealth runs the script with the few libraries that Argo CD opens, and its limit of one second.
func argoHealth(script string, object map[string]any) map[string]string {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, open := range []lua.LGFunction{lua.OpenPackage, lua.OpenBase, lua.OpenTable} {
		state.Push(state.NewFunction(open))
		state.Push(lua.LString(""))
		state.Call(1, 0)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", toLua(state, object))
	if err := state.DoString(script); err != nil {
		return map[string]string{"error": err.Error()}
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return map[string]string{"error": "the script returned no table"}
	}
	return map[string]string{"status": text(table, "status"), "message": text(table, "message")}
}

func text(table *lua.LTable, key string) string {
	if value, ok := table.RawGetString(key).(lua.LString); ok {
		return string(value)
	}
	return ""
}

func toLua(state *lua.LState, value any) lua.LValue {
	switch typed := value.(type) {
	case bool:
		return lua.LBool(typed)
	case int64:
		return lua.LNumber(typed)
	case float64:
		return lua.LNumber(typed)
	case string:
		return lua.LString(typed)
	case []any:
		table := state.NewTable()
		for _, item := range typed {
			table.Append(toLua(state, item))
		}
		return table
	case map[string]any:
		table := state.NewTable()
		for key, item := range typed {
			table.RawSetString(key, toLua(state, item))
		}
		return table
	}
	return lua.LNil
}
