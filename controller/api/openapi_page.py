"""A page that reads the OpenAPI description and needs nothing from elsewhere: clusters have no way out."""

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>motor-controller API</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
h2{font:600 1rem ui-monospace,monospace;margin:1.6rem 0 .2rem}h2 b{color:#06c}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.2rem .6rem .2rem 0;vertical-align:top}
td:first-child{font-family:ui-monospace,monospace;white-space:nowrap}pre{background:#f5f5f5;padding:.6rem;overflow:auto}
</style>
<h1>motor-controller API</h1><p id="about"></p><div id="paths">loading /openapi.json ...</div>
<script>
const el = (tag, text) => { const e = document.createElement(tag); if (text) e.textContent = text; return e };
// A browser sends no token of its own; one that is typed in stays in this tab.
const ask = async path => {
  const token = sessionStorage.getItem("token");
  const answer = await fetch(path, token ? {headers: {Authorization: "Bearer " + token}} : {});
  if (answer.status !== 401) return answer.json();
  const form = el("form"), field = el("input"), box = document.getElementById("paths");
  field.type = "password"; field.placeholder = "token"; field.autocomplete = "off"; form.append(field);
  box.textContent = token ? "That token is not valid. " : "This controller asks for a token. "; box.append(form);
  return new Promise(done => form.onsubmit = e => {
    e.preventDefault(); sessionStorage.setItem("token", field.value.trim()); done(ask(path)) });
};
ask("/openapi.json").then(api => {
  document.getElementById("about").textContent = api.info.description + " Version " + api.info.version + ".";
  const box = document.getElementById("paths"); box.textContent = "";
  for (const [path, methods] of Object.entries(api.paths)) for (const [method, op] of Object.entries(methods)) {
    const head = el("h2"); head.append(el("b", method.toUpperCase()), " " + path);
    box.append(head, el("div", op.description || op.summary));
    if (op.parameters) { const t = el("table");
      for (const p of op.parameters) { const row = el("tr"), s = p.schema || {};
        row.append(el("td", p.name + (p.required ? " *" : "")), el("td", [s.type, s.default !== undefined ?
          "default "+JSON.stringify(s.default) : "", p.description || ""].filter(Boolean).join("; "))); t.append(row)}
      box.append(t) }
    const ok = op.responses["200"], schema = ok && ok.content && Object.values(ok.content)[0].schema;
    const ref = schema && (schema.$ref || (schema.items && schema.items.$ref));
    if (ref) { const name = ref.split("/").pop(), box2 = el("details"); box2.append(el("summary", "answer: " +
      (schema.items ? "list of " : "") + name), el("pre", JSON.stringify(api.components.schemas[name], null, 1)));
      box.append(box2) }
  }
}).catch(e => { document.getElementById("paths").textContent = "cannot read /openapi.json: " + e });
</script></html>
"""
